#include "runtime/allocation_counter.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "process/atomics.h"

namespace poet::allocations {
namespace {

struct Counter {
  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> limit{0};
  std::atomic<int64_t> limit_base{0};
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

thread_local char refusal[192] = "";
thread_local bool is_refused = false;  // and nothing was allocated or thrown since

bool add_within_limit(int64_t bytes, bool may_refuse) noexcept {
  Counter& c = counter();
  const int64_t before = c.current.fetch_add(bytes, std::memory_order_relaxed);
  const int64_t limit = c.limit.load(std::memory_order_relaxed);
  if (bytes <= 0 || limit == 0 || before + bytes <= limit || !may_refuse) {
    raise_to(c.peak, before + bytes);
    return true;
  }
  c.current.fetch_sub(bytes, std::memory_order_relaxed);
  const int64_t base = c.limit_base.load(std::memory_order_relaxed);
  std::snprintf(refusal, sizeof refusal,
                "an allocation of %lld bytes exceeds the memory budget: %lld bytes are in use and the budget is %lld "
                "bytes",
                static_cast<long long>(bytes), static_cast<long long>(before - base),
                static_cast<long long>(limit - base));
  is_refused = true;
  return false;
}

}  // namespace

// Counts and logs in one step where a log is kept, so that its running sum is the counter's value.
bool count(int64_t bytes, bool may_refuse) noexcept {
  Counter& c = counter();
  if (!c.logging.load(std::memory_order_relaxed)) return add_within_limit(bytes, may_refuse);
  const std::lock_guard<std::mutex> lock(c.events_mutex);
  if (!add_within_limit(bytes, may_refuse)) return false;
  if (c.events.size() < c.events_capacity)
    c.events.push_back(bytes);
  else
    ++c.events_dropped;
  return true;
}

int64_t current_bytes() { return counter().current.load(std::memory_order_relaxed); }

int64_t peak_bytes() { return counter().peak.load(std::memory_order_relaxed); }

void reset_peak() { counter().peak.store(current_bytes(), std::memory_order_relaxed); }

void set_limit(int64_t limit, int64_t base) {
  counter().limit_base.store(base, std::memory_order_relaxed);
  counter().limit.store(limit, std::memory_order_relaxed);
}

const char* refusal_text() noexcept { return refusal; }

bool forget_refusal() noexcept {
  const bool was_refused = is_refused;
  is_refused = false;
  return was_refused;
}

bool reserve(uint64_t bytes) noexcept { return count(static_cast<int64_t>(bytes)); }

void give_back(uint64_t bytes) noexcept { count(-static_cast<int64_t>(bytes)); }

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
