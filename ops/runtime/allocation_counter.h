// How many bytes the tracked allocations (allocation_tracker.h) and this library's own memory have, their peak and
// their log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poet::allocations {

int64_t current_bytes();  // of live tracked blocks
int64_t peak_bytes();     // most that current_bytes was since the last reset_peak
void reset_peak();        // the peak restarts from current_bytes

void count_allocation(uint64_t bytes) noexcept;
void count_release(uint64_t bytes) noexcept;

// Logs every tracked allocation as +bytes and every release as -bytes, at most `capacity` of them; 0 ends the log.
void start_events(size_t capacity);
// What was logged since start_events, in order; `dropped` is set to the number of events beyond the capacity.
std::vector<int64_t> events(uint64_t* dropped);

// Around fork(): the log's lock may not be held by a thread that the child lacks.
void lock_counter_for_fork();
void unlock_counter_after_fork();

}  // namespace poet::allocations
