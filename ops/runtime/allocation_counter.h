// How many bytes the tracked allocations (allocation_tracker.h) and this library's own memory have, their peak, and how
// many were allocated in all.
#pragma once

#include <cstdint>

namespace poet::allocations {

int64_t current_bytes();    // of live tracked blocks
int64_t peak_bytes();       // most that current_bytes was since the last reset_peak
int64_t allocated_bytes();  // of all tracked blocks since the process began, released ones too
void reset_peak();          // the peak restarts from current_bytes

void count_allocation(uint64_t bytes) noexcept;
void count_release(uint64_t bytes) noexcept;

}  // namespace poet::allocations
