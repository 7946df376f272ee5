#include "runtime/allocation_counter.h"

#include <atomic>
#include <mutex>

#include "process/atomics.h"

namespace poet::allocations {
namespace {

struct Counter {
  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
  std::atomic<bool> logging{false};
  std::mutex events_mutex;
  std::vector<int64_t> events;
  size_t events_capacity = 0;
  uint64_t events_dropped = 0;
};

// Never destroyed: redirected functions are called until the process has gone.
Counter& counter() {
  static Counter* const instance = new Counter;
  return *instance;
}

void change(int64_t bytes) noexcept {
  Counter& c = counter();
  raise_to(c.peak, c.current.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

// Counts and logs in one step where a log is kept, so that its running sum is the counter's value.
void count(int64_t bytes) noexcept {
  Counter& c = counter();
  if (!c.logging.load(std::memory_order_relaxed)) return change(bytes);
  const std::lock_guard<std::mutex> lock(c.events_mutex);
  change(bytes);
  if (c.events.size() < c.events_capacity)
    c.events.push_back(bytes);
  else
    ++c.events_dropped;
}

}  // namespace

void count_allocation(uint64_t bytes) noexcept { count(static_cast<int64_t>(bytes)); }

void count_release(uint64_t bytes) noexcept { count(-static_cast<int64_t>(bytes)); }

int64_t current_bytes() { return counter().current.load(std::memory_order_relaxed); }

int64_t peak_bytes() { return counter().peak.load(std::memory_order_relaxed); }

void reset_peak() { counter().peak.store(current_bytes(), std::memory_order_relaxed); }

void start_events(size_t capacity) {
  Counter& c = counter();
  const std::lock_guard<std::mutex> lock(c.events_mutex);
  c.events.clear();
  c.events.shrink_to_fit();
  c.events.reserve(capacity);
  c.events_capacity = capacity;
  c.events_dropped = 0;
  c.logging.store(capacity != 0, std::memory_order_relaxed);
}

std::vector<int64_t> events(uint64_t* dropped) {
  Counter& c = counter();
  const std::lock_guard<std::mutex> lock(c.events_mutex);
  if (dropped != nullptr) *dropped = c.events_dropped;
  return c.events;
}

void lock_counter_for_fork() { counter().events_mutex.lock(); }

void unlock_counter_after_fork() { counter().events_mutex.unlock(); }

}  // namespace poet::allocations
