// How many bytes the tracked allocations (allocation_tracker.h) and this library's own memory have, their peak, their
// limit and their log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poet::allocations {

int64_t current_bytes();  // of live tracked blocks
int64_t peak_bytes();     // most that current_bytes was since the last reset_peak
void reset_peak();        // the peak restarts from current_bytes

// Adds to current_bytes; false, and nothing added, where the limit forbids that and the caller can be told.
bool count(int64_t bytes, bool may_refuse = true) noexcept;

// Forbids current_bytes to exceed `limit` (0: anything goes). An allocation that would do so fails as if there were no
// memory, and the runtime's error says so in bytes above `base`. One whose caller may not look whether it failed, or
// on a thread of the runtime's pool, where nobody would catch what is thrown, is counted and made: the next one beyond
// the limit fails.
void set_limit(int64_t limit, int64_t base);
// Why the last allocation of this thread was forbidden.
const char* refusal_text() noexcept;
// The thread goes on after a refusal; false where there was none.
bool forget_refusal() noexcept;

// Memory of this library's own: counts bytes that are about to be allocated, false where the limit forbids them.
bool reserve(uint64_t bytes) noexcept;
void give_back(uint64_t bytes) noexcept;

// Logs every tracked allocation as +bytes and every release as -bytes, at most `capacity` of them; 0 ends the log.
void start_events(size_t capacity);
// What was logged since start_events, in order; `dropped` is set to the number of events beyond the capacity.
std::vector<int64_t> events(uint64_t* dropped);

// Around fork(): the log's lock may not be held by a thread that the child lacks.
void lock_counter_for_fork();
void unlock_counter_after_fork();

}  // namespace poet::allocations
