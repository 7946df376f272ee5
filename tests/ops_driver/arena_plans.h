// Random plans of a step's allocations, and their layouts, for the scenarios of arena.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "arena/arena_layout.h"

namespace driver {

using namespace poet;

using Random = std::mt19937_64;

inline uint64_t below(Random& random, uint64_t end) { return random() % end; }
inline bool one_in(Random& random, uint64_t count) { return below(random, count) == 0; }

struct PlannedBlock {
  uint64_t bytes = 0;
  size_t born = 0, dies = 0;
  bool is_output = false;     // leaves with the caller
  bool is_workspace = false;  // of one step
  int64_t offset = -1;
};

// A step's plan: what each step asks for, in order.
struct Plan {
  std::vector<std::vector<PlannedBlock>> steps;
  int64_t region_bytes = 0;
  std::vector<int64_t> numbers;
};

// Places every block at the lowest address that is free for as long as it lives.
inline void pack(Plan* plan) {
  std::vector<PlannedBlock*> placed;
  for (auto& step : plan->steps)
    for (PlannedBlock& block : step) {
      if (block.is_output) continue;
      std::map<int64_t, int64_t> busy;
      for (const PlannedBlock* other : placed)
        if (other->born <= block.dies && block.born <= other->dies)
          busy[other->offset] = other->offset + static_cast<int64_t>(aligned(other->bytes));
      int64_t at = 0;
      for (const auto& [begin, end] : busy) {
        if (begin >= at + static_cast<int64_t>(aligned(block.bytes))) break;
        at = std::max(at, end);
      }
      block.offset = at;
      placed.push_back(&block);
      plan->region_bytes = std::max(plan->region_bytes, at + static_cast<int64_t>(aligned(block.bytes)));
    }
}

// At most one workspace a step has a zone; `has_twins`: sizes repeat, so that one block may be taken for another.
inline Plan make_plan(Random& random, bool has_twins) {
  Plan plan;
  plan.steps.resize(1 + below(random, 20));
  uint64_t next_bytes = 1;
  for (size_t step = 0; step < plan.steps.size(); ++step) {
    const auto size = [&] { return has_twins ? 64 << below(random, 4) : (next_bytes += 1 + below(random, 90)); };
    for (uint64_t count = below(random, 4); count > 0; --count) {
      PlannedBlock block{size(), step, step, one_in(random, 8), false, -1};
      while (block.dies + 1 < plan.steps.size() && !one_in(random, 4)) ++block.dies;
      plan.steps[step].push_back(block);
    }
    if (one_in(random, 2)) plan.steps[step].push_back({size(), step, step, false, true, -1});
    std::shuffle(plan.steps[step].begin(), plan.steps[step].end(), random);
  }
  pack(&plan);
  for (const auto& step : plan.steps) {
    int64_t zone = 0, zone_bytes = 0, count = 0;
    std::vector<int64_t> blocks;
    for (const PlannedBlock& block : step) {
      if (block.is_workspace) {
        zone = block.offset;
        zone_bytes = static_cast<int64_t>(block.bytes);
      } else {
        blocks.insert(blocks.end(),
                      {block.offset, static_cast<int64_t>(block.bytes), static_cast<int64_t>(block.dies)});
        ++count;
      }
    }
    plan.numbers.insert(plan.numbers.end(), {zone, zone_bytes, count});
    plan.numbers.insert(plan.numbers.end(), blocks.begin(), blocks.end());
  }
  return plan;
}

// Blocks of a run that are not outputs.
inline uint64_t blocks_in_region(const Plan& plan) {
  uint64_t count = 0;
  for (const auto& step : plan.steps)
    count += static_cast<uint64_t>(
        std::count_if(step.begin(), step.end(), [](const PlannedBlock& block) { return !block.is_output; }));
  return count;
}

}  // namespace driver
