// How much more memory this process may take, by what the system says.
#pragma once

#include <cstdint>
#include <string>

namespace poet {

// How much the page cache may hold for this process besides: the least of "MemAvailable" of /proc/meminfo
// (proc(5)) and of what the control groups above this process leave it, whose limits count the cache; 0 where the first
// cannot be read.
uint64_t cache_room_bytes();

struct MemoryLeft {
  uint64_t bytes = UINT64_MAX;
  uint64_t missing_bytes = 0;  // by which more is in use than a limit allows that was set meanwhile
  std::string limit;           // what sets it, for people
};

// Which limits count: those that nobody can pass, or also those above which the kernel takes memory back first.
enum class Limits { kHard, kSoft };

// The least of what the system has available, what the control groups above this process leave it and what its own
// resource limits leave it. With a `root`, where a file system was recorded: of what is there, without resource limits.
MemoryLeft memory_left(Limits limits = Limits::kHard, const std::string& root = {});

}  // namespace poet
