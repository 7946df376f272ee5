#include "arena/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "arena/arena_statistics.h"
#include "faults/faults.h"
#include "process/error.h"
#include "process/memory_left.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#if !defined(ASAN_POISON_MEMORY_REGION)
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

#if !defined(MADV_POPULATE_WRITE)  // Linux 5.14; older headers lack it
#define MADV_POPULATE_WRITE 23
#endif

namespace poet {
namespace {

[[noreturn]] void refuse(uint64_t bytes) {
  const MemoryLeft left = memory_left();
  throw Error("the step needs a region of " + std::to_string(bytes) + " bytes, but the system has " +
              std::to_string(left.bytes) + " bytes left (" + left.limit + "): plan for a smaller budget");
}

// Gives every page its memory now, so that a step cannot run out of it.
bool touch(unsigned char* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page_bytes) static_cast<volatile unsigned char*>(data)[at] = 0;
  return true;
}

}  // namespace

Region::Region(uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (memory_left().bytes < bytes) refuse(bytes);
  void* const made = faults::mapping_fails()
                         ? MAP_FAILED
                         : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) refuse(bytes);
  data_ = static_cast<unsigned char*>(made);
  if (!touch(data_, bytes)) {
    munmap(data_, bytes);
    refuse(bytes);
  }
  ASAN_POISON_MEMORY_REGION(data_, bytes);
  arena_totals().region_bytes.fetch_add(bytes_, std::memory_order_relaxed);
}

Region::~Region() {
  if (data_ == nullptr) return;
  arena_totals().region_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  ASAN_UNPOISON_MEMORY_REGION(data_, bytes_);
  munmap(data_, bytes_);
}

bool Region::hold(const void* arena) noexcept {
  const void* holder = nullptr;
  return holder_.compare_exchange_strong(holder, arena, std::memory_order_acquire) || holder == arena;
}

bool Region::is_held_by_other(const void* arena) const noexcept {
  const void* const holder = holder_.load(std::memory_order_acquire);
  return holder != nullptr && holder != arena;
}

void Region::hand_out(uint64_t offset, uint64_t bytes) const noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data_ + offset, bytes);
}

void Region::take_back(uint64_t offset, uint64_t bytes) const noexcept {
  ASAN_POISON_MEMORY_REGION(data_ + offset, bytes);
}

}  // namespace poet
