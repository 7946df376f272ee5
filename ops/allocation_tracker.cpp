#include "allocation_tracker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>

#include "elf_patch.h"

namespace poet::allocations {
namespace {

// No block that the tracker counts has a smaller alignment: ONNX Runtime asks for 64 bytes (and more on some builds).
// A release of any other address is none of ours, which spares small objects the look-up.
constexpr uintptr_t kMinAlignment = 64;
constexpr size_t kShards = 64;

struct Shard {
  std::mutex mutex;
  std::unordered_map<const void*, uint64_t> bytes_of;
};

struct State {
  std::array<Shard, kShards> shards;
  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> count{0};
  std::atomic<ReleaseHook> hook{nullptr};
  std::atomic<bool> logging{false};
  std::mutex events_mutex;
  std::vector<int64_t> events;
  size_t events_capacity = 0;
  uint64_t events_dropped = 0;
  std::mutex modules_mutex;
  std::vector<std::pair<const void*, size_t>> modules;  // an address in each, and the imports redirected
};

// Never destroyed: redirected functions are called until the process has gone.
State& state() {
  static State* const instance = new State;
  return *instance;
}

Shard& shard_of(const void* block) {
  const auto mixed = (reinterpret_cast<uintptr_t>(block) / kMinAlignment) * uintptr_t{0x9E3779B97F4A7C15};
  return state().shards[mixed >> 58];
}

void raise_peak(int64_t bytes) {
  auto& peak = state().peak;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

// Counts and logs in one step where a log is kept, so that its running sum is the counter's value.
void count(int64_t bytes) {
  State& s = state();
  if (!s.logging.load(std::memory_order_relaxed)) {
    raise_peak(s.current.fetch_add(bytes, std::memory_order_relaxed) + bytes);
    return;
  }
  const std::lock_guard<std::mutex> lock(s.events_mutex);
  raise_peak(s.current.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  if (s.events.size() < s.events_capacity)
    s.events.push_back(bytes);
  else
    ++s.events_dropped;
}

void add(const void* block, uint64_t bytes) noexcept {
  if (block == nullptr || reinterpret_cast<uintptr_t>(block) % kMinAlignment != 0) return;
  uint64_t replaced = 0;
  try {
    Shard& shard = shard_of(block);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    uint64_t& entry = shard.bytes_of[block];
    replaced = entry;  // not 0 where a module that is not tracked released the block that was here before
    entry = bytes;
  } catch (const std::bad_alloc&) {
    return;  // the allocation itself stands; a block that cannot be tracked is paged synchronously
  }
  if (replaced != 0) count(-static_cast<int64_t>(replaced));
  state().count.fetch_add(1, std::memory_order_relaxed);
  count(static_cast<int64_t>(bytes));
}

void remove(const void* block) {
  if (block == nullptr || reinterpret_cast<uintptr_t>(block) % kMinAlignment != 0) return;
  uint64_t bytes = 0;
  {
    Shard& shard = shard_of(block);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto entry = shard.bytes_of.find(block);
    if (entry == shard.bytes_of.end()) return;
    bytes = entry->second;
    shard.bytes_of.erase(entry);
  }
  if (const ReleaseHook hook = state().hook.load(std::memory_order_acquire)) hook(block, bytes);
  count(-static_cast<int64_t>(bytes));
}

void* replacement_aligned_alloc(size_t alignment, size_t bytes) {
  void* block = aligned_alloc(alignment, bytes);
  add(block, bytes);
  return block;
}

void* replacement_new(size_t bytes, std::align_val_t alignment) {
  void* block = ::operator new(bytes, alignment);
  add(block, bytes);
  return block;
}

void* replacement_new_nothrow(size_t bytes, std::align_val_t alignment, const std::nothrow_t& nothrow) noexcept {
  void* block = ::operator new(bytes, alignment, nothrow);
  add(block, bytes);
  return block;
}

void replacement_delete(void* block, std::align_val_t alignment) noexcept {
  remove(block);
  ::operator delete(block, alignment);
}

void replacement_sized_delete(void* block, size_t, std::align_val_t alignment) noexcept {
  replacement_delete(block, alignment);
}

void replacement_delete_nothrow(void* block, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  replacement_delete(block, alignment);
}

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

int replacement_posix_memalign(void** block, size_t alignment, size_t bytes) {
  const int result = posix_memalign(block, alignment, bytes);
  if (result == 0) add(*block, bytes);
  return result;
}

void replacement_free(void* block) {
  remove(block);
  free(block);
}

size_t track_module(const void* address) {
  // Mangled names: Itanium C++ ABI. operator new/new[]/delete/delete[] with std::align_val_t.
  const Redirection redirections[] = {
      {"posix_memalign", address_of(replacement_posix_memalign)},
      {"aligned_alloc", address_of(replacement_aligned_alloc)},
      {"memalign", address_of(replacement_aligned_alloc)},
      {"free", address_of(replacement_free)},
      {"_ZnwmSt11align_val_t", address_of(replacement_new)},
      {"_ZnamSt11align_val_t", address_of(replacement_new)},
      {"_ZnwmSt11align_val_tRKSt9nothrow_t", address_of(replacement_new_nothrow)},
      {"_ZnamSt11align_val_tRKSt9nothrow_t", address_of(replacement_new_nothrow)},
      {"_ZdlPvSt11align_val_t", address_of(replacement_delete)},
      {"_ZdaPvSt11align_val_t", address_of(replacement_delete)},
      {"_ZdlPvmSt11align_val_t", address_of(replacement_sized_delete)},
      {"_ZdaPvmSt11align_val_t", address_of(replacement_sized_delete)},
      {"_ZdlPvSt11align_val_tRKSt9nothrow_t", address_of(replacement_delete_nothrow)},
      {"_ZdaPvSt11align_val_tRKSt9nothrow_t", address_of(replacement_delete_nothrow)},
  };
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.modules_mutex);
  for (const auto& [known, redirected] : s.modules)
    if (known == address) return redirected;
  const size_t redirected = redirect_imports(address, redirections, std::size(redirections));
  s.modules.emplace_back(address, redirected);
  return redirected;
}

size_t tracked_imports() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.modules_mutex);
  size_t all = 0;
  for (const auto& module : s.modules) all += module.second;
  return all;
}

int64_t current_bytes() { return state().current.load(std::memory_order_relaxed); }

int64_t peak_bytes() { return state().peak.load(std::memory_order_relaxed); }

int64_t allocation_count() { return state().count.load(std::memory_order_relaxed); }

void reset_peak() { state().peak.store(current_bytes(), std::memory_order_relaxed); }

void start_events(size_t capacity) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.events_mutex);
  s.events.clear();
  s.events.shrink_to_fit();
  s.events.reserve(capacity);
  s.events_capacity = capacity;
  s.events_dropped = 0;
  s.logging.store(capacity != 0, std::memory_order_relaxed);
}

std::vector<int64_t> events(uint64_t* dropped) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.events_mutex);
  if (dropped != nullptr) *dropped = s.events_dropped;
  return s.events;
}

bool is_tracked(const void* data, uint64_t bytes) {
  if (data == nullptr || reinterpret_cast<uintptr_t>(data) % kMinAlignment != 0) return false;
  Shard& shard = shard_of(data);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto entry = shard.bytes_of.find(data);
  return entry != shard.bytes_of.end() && entry->second >= bytes;
}

void set_release_hook(ReleaseHook hook) { state().hook.store(hook, std::memory_order_release); }

void lock_for_fork() {
  State& s = state();
  for (Shard& shard : s.shards) shard.mutex.lock();
  s.events_mutex.lock();
  s.modules_mutex.lock();
}

void unlock_after_fork() {
  State& s = state();
  s.modules_mutex.unlock();
  s.events_mutex.unlock();
  for (auto shard = s.shards.rbegin(); shard != s.shards.rend(); ++shard) shard->mutex.unlock();
}

}  // namespace poet::allocations
