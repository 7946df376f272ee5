// Exact bytes of the aligned blocks that one module (ONNX Runtime) has allocated, and a watch on their release.
//
// ONNX Runtime's CPU allocator asks for every tensor and workspace by posix_memalign (1.19.2) or the aligned operator
// new (1.31) and nothing else in it does. Redirecting these imports of its module (elf_patch.h) gives the numbers that
// a preloaded library would, without one: bytes as requested, and the moment at which a block goes away. Threads may
// allocate and free at once: the table of live blocks is split into shards with a lock each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/allocation_counter.h"

namespace poet::allocations {

// Starts tracking the module that contains `address`; later calls for the same module change nothing.
// Returns the number of imports redirected in it, 0 where it cannot be tracked. Blocks of before stay uncounted.
size_t track_module(const void* address);
size_t tracked_imports();  // redirected in all modules together

// Until it is called with 0, what this thread allocates is the runtime's own allocator's work, which was asked for so
// many bytes. Then it is known who calls: an arena may serve it, and nobody else.
void learn_caller(size_t asked_bytes);

// From now on large blocks start at whole pages, so that direct I/O can reach them without a copy in between.
void align_large_blocks();

// What this thread allocates while it is on is not counted: the byte of a flag that no plan has.
void leave_uncounted(bool is_on);

// True where `data` is the first byte of a live tracked block of at least `bytes` bytes.
bool is_tracked(const void* data, uint64_t bytes);

// Called with every tracked block right before it is released, on the thread that releases it.
using ReleaseHook = void (*)(const void* data, uint64_t bytes);
void set_release_hook(ReleaseHook hook);

// The functions that stand in for the module's imports; public for the driver in tests/ops/driver.
int replacement_posix_memalign(void** block, size_t alignment, size_t bytes);
void replacement_free(void* block);

// Around fork(): no lock of the tracker may be held by a thread that the child lacks.
void lock_for_fork();
void unlock_after_fork();

}  // namespace poet::allocations
