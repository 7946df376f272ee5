// A child of fork() has the parent's memory but not its I/O threads, and would write into the parent's page file.
#pragma once

#include <cstdint>

namespace poet {

// How many forks lie between the first process that loaded the library and this one. The first call installs the
// handlers.
uint64_t fork_depth();

}  // namespace poet
