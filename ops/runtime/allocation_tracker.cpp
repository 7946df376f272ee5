#include "runtime/allocation_tracker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>

#include "arena/arenas.h"
#include "runtime/elf_patch.h"

namespace poet::allocations {
namespace {

// Only blocks of this alignment are counted: ONNX Runtime asks for 64 bytes (and more on some builds) for its tensors.
// A release of any other address is none of ours, which spares small objects the look-up.
constexpr uintptr_t kMinAlignment = 64;
constexpr size_t kShards = 64;
constexpr size_t kLargeBytes = 64 << 10;
constexpr size_t kLargeAlignment = 4096;

struct Block {
  uint64_t bytes = 0;
  Arena* arena = nullptr;  // that is to know of its release
};

struct Shard {
  std::mutex mutex;
  std::unordered_map<const void*, Block> blocks;
};

struct State {
  std::array<Shard, kShards> shards;
  std::atomic<ReleaseHook> hook{nullptr};
  std::atomic<bool> aligns_large{false};
  std::atomic<const void*> allocator_call{nullptr};
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

thread_local size_t learnt_bytes = 0;  // not 0: that the runtime's allocator was asked for, which calls next

thread_local bool is_uncounted = false;

// Whether the runtime's allocator asks, the one that was learnt: of the callers of posix_memalign the one that it
// returned to. Where it calls the aligned operator new, by a tail call that hides it, nothing else does so in a step.
bool is_allocator_at(const void* call, size_t bytes) {
  State& s = state();
  if (learnt_bytes != 0) {
    s.allocator_call.store(call, std::memory_order_relaxed);
    set_allocator_extra_bytes(bytes - std::min(bytes, learnt_bytes));
  }
  return s.allocator_call.load(std::memory_order_relaxed) == call;
}

const char kAnyNew = 0;  // its address stands for every caller of the aligned operator new

// Ends what was counted for a block; true where its memory is an arena's, and has gone back there.
bool settle(const void* address, const Block& block) noexcept {
  count_release(block.bytes);
  return block.arena != nullptr && block.arena->release(address, block.bytes);
}

// Remembers a block whose bytes are counted; false where that cannot be.
bool add(const void* address, const Block& block) noexcept {
  Block replaced;
  try {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    Block& entry = shard.blocks[address];
    replaced = entry;  // of bytes where a module that is not tracked released the block that was here before
    entry = block;
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (replaced.bytes != 0) settle(address, replaced);
  return true;
}

// Forgets a block that is about to be released; true where nothing is left to do for that.
bool remove(const void* address) {
  if (address == nullptr || reinterpret_cast<uintptr_t>(address) % kMinAlignment != 0) return false;
  Block block;
  {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto entry = shard.blocks.find(address);
    if (entry == shard.blocks.end()) return false;
    block = entry->second;
    shard.blocks.erase(entry);
  }
  if (const ReleaseHook hook = state().hook.load(std::memory_order_acquire)) hook(address, block.bytes);
  return settle(address, block);
}

// Allocates from this thread's arena or else by `call(alignment)`, which returns the block or nullptr; counted.
template <class Call>
void* allocate(bool is_allocator, size_t alignment, size_t bytes, Call&& call) {
  if (alignment < kMinAlignment || is_uncounted) return call(alignment);
  const bool is_arenas = is_allocator && alignment <= kBlockAlignment;
  if (bytes >= kLargeBytes && state().aligns_large.load(std::memory_order_relaxed))
    alignment = std::max(alignment, kLargeAlignment);
  const arenas::Grant grant = is_arenas ? arenas::take(bytes) : arenas::Grant{};
  const Block made{bytes, grant.arena};
  count_allocation(bytes);
  void* const block = grant.block != nullptr ? grant.block : call(alignment);
  if (block == nullptr) {
    settle(block, made);
    return nullptr;
  }
  // A block that cannot be tracked is made all the same, and paged synchronously; an arena could not get it back.
  return add(block, made) || !settle(block, made) ? block : call(alignment);
}

void* replacement_aligned_alloc(size_t alignment, size_t bytes) {
  void* block = allocate(is_allocator_at(__builtin_return_address(0), bytes), alignment, bytes,
                         [&](size_t aligned) { return aligned_alloc(aligned, bytes); });
  if (block == nullptr) errno = ENOMEM;
  return block;
}

void* replacement_new_nothrow(size_t bytes, std::align_val_t alignment, const std::nothrow_t& nothrow) noexcept {
  return allocate(false, static_cast<size_t>(alignment), bytes,
                  [&](size_t aligned) { return ::operator new(bytes, std::align_val_t{aligned}, nothrow); });
}

void* replacement_new(size_t bytes, std::align_val_t alignment) {
  void* const block =
      allocate(is_allocator_at(&kAnyNew, bytes), static_cast<size_t>(alignment), bytes,
               [&](size_t aligned) { return ::operator new(bytes, std::align_val_t{aligned}, std::nothrow); });
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void replacement_delete(void* block, std::align_val_t alignment) noexcept {
  if (!remove(block)) ::operator delete(block, alignment);
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

void learn_caller(size_t asked_bytes) { learnt_bytes = asked_bytes; }

void leave_uncounted(bool is_on) { is_uncounted = is_on; }

void align_large_blocks() { state().aligns_large.store(true, std::memory_order_relaxed); }

int replacement_posix_memalign(void** block, size_t alignment, size_t bytes) {
  int error = ENOMEM;
  const bool is_allocator = is_allocator_at(__builtin_return_address(0), bytes);
  void* const made = allocate(is_allocator, alignment, bytes, [&](size_t aligned) -> void* {
    error = posix_memalign(block, aligned, bytes);
    return error == 0 ? *block : nullptr;
  });
  if (made == nullptr) return error;
  *block = made;
  return 0;
}

void replacement_free(void* block) {
  if (!remove(block)) free(block);
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

bool is_tracked(const void* data, uint64_t bytes) {
  if (data == nullptr || reinterpret_cast<uintptr_t>(data) % kMinAlignment != 0) return false;
  Shard& shard = shard_of(data);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto entry = shard.blocks.find(data);
  return entry != shard.blocks.end() && entry->second.bytes >= bytes;
}

void set_release_hook(ReleaseHook hook) { state().hook.store(hook, std::memory_order_release); }

void lock_for_fork() {
  State& s = state();
  for (Shard& shard : s.shards) shard.mutex.lock();
  s.modules_mutex.lock();
}

void unlock_after_fork() {
  State& s = state();
  s.modules_mutex.unlock();
  for (auto shard = s.shards.rbegin(); shard != s.shards.rend(); ++shard) shard->mutex.unlock();
}

}  // namespace poet::allocations
