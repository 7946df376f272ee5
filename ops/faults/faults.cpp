#include "faults/faults.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>

#include "runtime/elf_patch.h"

namespace poet::faults {
namespace {

std::atomic<int> armed_kind{0};
std::atomic<int64_t> calls_left{-1};  // counts down; the call that finds 0 fails
std::atomic<uint64_t> calls{0};
std::atomic<int> delay_microseconds{0};

bool is_the_one() {
  calls.fetch_add(1);
  int64_t left = calls_left.load();
  while (left >= 0 && !calls_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

bool allocation_fails() { return armed_kind.load() == static_cast<int>(Kind::kOutOfMemory) && is_the_one(); }

// The originals of the allocation functions that this library imports; redirected once, when a test first asks for it.
void* (*original_new)(size_t) = nullptr;
void* (*original_new_nothrow)(size_t, const std::nothrow_t&) = nullptr;
int (*original_posix_memalign)(void**, size_t, size_t) = nullptr;

void* failing_new(size_t bytes) {
  if (allocation_fails()) throw std::bad_alloc();
  return original_new(bytes);
}

void* failing_new_nothrow(size_t bytes, const std::nothrow_t& nothrow) {
  return allocation_fails() ? nullptr : original_new_nothrow(bytes, nothrow);
}

int failing_posix_memalign(void** block, size_t alignment, size_t bytes) {
  return allocation_fails() ? ENOMEM : original_posix_memalign(block, alignment, bytes);
}

void redirect_allocations() {
  static const size_t redirected = [] {
    // Mangled names: Itanium C++ ABI.
    const Redirection redirections[] = {
        {"_Znwm", reinterpret_cast<void*>(failing_new), reinterpret_cast<void**>(&original_new)},
        {"_Znam", reinterpret_cast<void*>(failing_new), reinterpret_cast<void**>(&original_new)},
        {"_ZnwmRKSt9nothrow_t", reinterpret_cast<void*>(failing_new_nothrow),
         reinterpret_cast<void**>(&original_new_nothrow)},
        {"posix_memalign", reinterpret_cast<void*>(failing_posix_memalign),
         reinterpret_cast<void**>(&original_posix_memalign)},
    };
    return redirect_imports(reinterpret_cast<const void*>(redirect_allocations), redirections, std::size(redirections));
  }();
  static_cast<void>(redirected);
}

}  // namespace

std::atomic<bool> is_armed{false};

void arm(Kind kind, uint64_t calls_before) {
  if (kind == Kind::kOutOfMemory) redirect_allocations();
  calls = 0;
  calls_left = static_cast<int64_t>(calls_before);
  armed_kind = static_cast<int>(kind);
  is_armed = true;
}

uint64_t disarm() {
  armed_kind = 0;
  is_armed = delay_microseconds.load() != 0;
  return calls.load();
}

void set_delay_microseconds(int delay) {
  delay_microseconds = delay;
  is_armed = delay != 0 || armed_kind.load() != 0;
}

Kind next_call_counted() {
  if (const int delay = delay_microseconds.load()) usleep(static_cast<useconds_t>(delay));
  const auto kind = static_cast<Kind>(armed_kind.load());
  if (kind == Kind::kNone || kind == Kind::kOutOfMemory || kind == Kind::kNoMapping) return Kind::kNone;
  return is_the_one() ? kind : Kind::kNone;
}

bool mapping_fails() {
  return is_armed.load(std::memory_order_relaxed) && armed_kind.load() == static_cast<int>(Kind::kNoMapping) &&
         is_the_one();
}

// The log: for each write its offset, its size and its bytes; for each sync two numbers of all ones.
std::FILE* write_log = nullptr;

void log_write(uint64_t offset, const void* data, uint64_t bytes) {
  if (write_log == nullptr) return;
  const uint64_t head[] = {offset, bytes};
  std::fwrite(head, sizeof head, 1, write_log);
  std::fwrite(data, 1, bytes, write_log);
}

void log_sync() {
  const uint64_t head[] = {~uint64_t{0}, ~uint64_t{0}};
  if (write_log != nullptr) std::fwrite(head, sizeof head, 1, write_log);
}

int errno_of(Kind kind) {
  switch (kind) {
    case Kind::kInterrupted:
      return EINTR;
    case Kind::kDiskFull:
      return ENOSPC;
    case Kind::kQuota:
      return EDQUOT;
    case Kind::kUnsupported:
      return EOPNOTSUPP;
    default:
      return EIO;
  }
}

}  // namespace poet::faults

#define POET_EXPORT extern "C" __attribute__((visibility("default")))

// For tests in Python: arm() and disarm().
POET_EXPORT void poet_arm_fault(int kind, uint64_t calls_before) {
  poet::faults::arm(static_cast<poet::faults::Kind>(kind), calls_before);
}

POET_EXPORT uint64_t poet_disarm_fault() { return poet::faults::disarm(); }

// Begins to log what the parameter stores write, to a new file; ends that where there is no path.
POET_EXPORT void poet_log_writes(const char* path) {
  if (poet::faults::write_log != nullptr) std::fclose(poet::faults::write_log);
  poet::faults::write_log = path == nullptr ? nullptr : std::fopen(path, "wb");
}
