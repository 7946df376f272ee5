// What arenas have served, each of them and all together.
#pragma once

#include <atomic>
#include <cstdint>

namespace poet {

// The layout that poet_onnx/runtime/arena.py reads.
struct ArenaValues {
  uint64_t region_bytes = 0;
  uint64_t steps = 0;                 // runs that were served
  uint64_t refused_steps = 0;         // runs that found the region in use by another thread
  uint64_t planned = 0;               // blocks at their planned addresses
  uint64_t workspace = 0;             // other blocks in the region
  uint64_t unplanned = 0;             // blocks that the region had no room for
  uint64_t unplanned_most_bytes = 0;  // of these, alive at once
  uint64_t largest_end = 0;           // of the blocks in the region
};

// Of all arenas that this process ever had.
struct ArenaTotals {
  std::atomic<uint64_t> region_bytes{0}, steps{0}, refused_steps{0}, planned{0}, workspace{0}, unplanned{0};
  std::atomic<uint64_t> unplanned_bytes{0}, unplanned_most_bytes{0}, largest_end{0};

  ArenaValues values() const {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    return {region_bytes.load(kRelaxed),
            steps.load(kRelaxed),
            refused_steps.load(kRelaxed),
            planned.load(kRelaxed),
            workspace.load(kRelaxed),
            unplanned.load(kRelaxed),
            unplanned_most_bytes.load(kRelaxed),
            largest_end.load(kRelaxed)};
  }
};

inline ArenaTotals& arena_totals() {
  static auto* const instance = new ArenaTotals;
  return *instance;
}

inline void add_one(uint64_t& own, std::atomic<uint64_t>& all) {
  ++own;
  all.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace poet
