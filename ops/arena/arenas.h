// The arenas of the process, and the one that serves this thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena/arena.h"

namespace poet::arenas {

// Opens an arena; throws Error. It stays at its address for ever, and is opened again for another session after it was
// closed: so a thread may hold it beyond that.
Arena& open(const ArenaLayout& layout);

// Arenas that this thread opens from now on share the region of an open one of the same group, where that is large
// enough: their runs take turns. 0: each has its own.
void set_group(uint64_t group);

// The allocations of this thread are served by the arena from now on, until the run has ended.
void enter(Arena& arena);

// The run of this thread begins a step of its layout.
void reach(uint32_t step) noexcept;

struct Grant {
  void* block = nullptr;   // nullptr: ask malloc
  Arena* arena = nullptr;  // that is to know of the release
};

// Asks this thread's arena for a block.
Grant take(uint64_t bytes) noexcept;

std::vector<uint64_t> numbers();  // of the open ones, the oldest first
// False where no open arena has the number; 0 stands for all that the process ever had.
bool read(uint64_t number, ArenaValues* values);

void lock_for_fork();
void unlock_after_fork();

}  // namespace poet::arenas
