// What the counters of several files do with atomics.
#pragma once

#include <atomic>

namespace poet {

// Lets `most` be at least `value`, whoever else changes it at the same time.
template <class Number>
void raise_to(std::atomic<Number>& most, Number value) {
  Number seen = most.load(std::memory_order_relaxed);
  while (value > seen && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace poet
