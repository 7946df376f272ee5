// How much more memory this process may take, by what the system says.
#pragma once

#include <cstdint>
#include <string>

namespace poet {

// "MemAvailable" of /proc/meminfo (proc(5)); 0 where it cannot be read.
uint64_t available_bytes();

struct MemoryLeft {
  uint64_t bytes = UINT64_MAX;
  std::string limit;  // what sets it, for people
};

// The least of what the system has available, what the control groups above this process leave it and what its own
// resource limits leave it.
MemoryLeft memory_left();

}  // namespace poet
