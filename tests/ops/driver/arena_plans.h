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
  std::map<size_t, size_t> marks;  // the step that begins, by the step before which a run tells so
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

inline bool is_planned(const PlannedBlock& block) { return !block.is_output && !block.is_workspace; }

// Where a run has to tell its step: as poet_onnx/addresses/marks.py finds it.
inline void mark(Plan* plan) {
  const size_t count = plan->steps.size();
  std::vector<bool> told(count);
  for (const auto& step : plan->steps)
    for (const PlannedBlock& block : step)
      if (is_planned(block) && block.dies > block.born) told[block.dies] = true;
  for (size_t index = 0; index < count; ++index) {
    const auto& step = plan->steps[index];
    if (step.empty() || told[index]) continue;
    size_t following = index + 1;
    while (following < count && plan->steps[following].empty()) ++following;
    uint64_t room = 0, smallest = UINT64_MAX;
    bool has_outputs = false, ends_unseen = false, is_sure_to_ask = false, may_ask_more = following == count;
    for (const PlannedBlock& block : step) {
      if (block.is_workspace) room = block.bytes;
      has_outputs = has_outputs || block.is_output;
      ends_unseen = ends_unseen || (is_planned(block) && block.dies > index && block.dies < following);
    }
    if (following < count)
      for (const PlannedBlock& block : plan->steps[following]) {
        may_ask_more = may_ask_more || block.is_workspace;
        is_sure_to_ask = is_sure_to_ask || is_planned(block);
        smallest = std::min(smallest, block.bytes);
      }
    const bool is_told_apart =
        !has_outputs && (room == 0 || (!ends_unseen && is_sure_to_ask && !may_ask_more && smallest > room));
    if (!is_told_apart) plan->marks[index + 1] = following;
  }
}

// At most one workspace a step has a zone; `has_twins`: sizes repeat, so that one block may be taken for another. Then
// what is in the region comes first in its step, and its workspace last: as a kernel is declared.
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
    if (one_in(random, 2)) plan.steps[step].push_back({size() + (has_twins ? 32 : 0), step, step, false, true, -1});
    const auto rank = [](const PlannedBlock& block) { return block.is_workspace ? 2 : block.is_output ? 1 : 0; };
    if (has_twins)
      std::stable_sort(plan.steps[step].begin(), plan.steps[step].end(),
                       [&](const PlannedBlock& a, const PlannedBlock& b) { return rank(a) < rank(b); });
    else
      std::shuffle(plan.steps[step].begin(), plan.steps[step].end(), random);
  }
  pack(&plan);
  mark(&plan);
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

}  // namespace driver
