#include "runtime/allocation_counter.h"

#include <atomic>

#include "process/atomics.h"

namespace poet::allocations {
namespace {

struct Counter {
  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> allocated{0};
};

// Never destroyed: redirected functions are called until the process has gone.
Counter& counter() {
  static Counter* const instance = new Counter;
  return *instance;
}

}  // namespace

void count_allocation(uint64_t bytes) noexcept {
  Counter& c = counter();
  const auto added = static_cast<int64_t>(bytes);
  c.allocated.fetch_add(added, std::memory_order_relaxed);
  raise_to(c.peak, c.current.fetch_add(added, std::memory_order_relaxed) + added);
}

void count_release(uint64_t bytes) noexcept {
  counter().current.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

int64_t current_bytes() { return counter().current.load(std::memory_order_relaxed); }

int64_t peak_bytes() { return counter().peak.load(std::memory_order_relaxed); }

int64_t allocated_bytes() { return counter().allocated.load(std::memory_order_relaxed); }

void reset_peak() { counter().peak.store(current_bytes(), std::memory_order_relaxed); }

}  // namespace poet::allocations
