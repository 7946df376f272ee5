#include "addresses/bottom_up.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace poet {
namespace {

constexpr int64_t kWeight = 1000, kSpread = 100;  // of a step, and what is drawn on top
constexpr int64_t kStuckWeight = 20;              // added for each slot that was passed over because of the step

}  // namespace

BottomUp::BottomUp(const std::vector<Slot>& slots) : slots_(slots) {
  const auto dies_before = [](const Slot& one, const Slot& other) { return one.dies < other.dies; };
  const size_t steps = 1 + std::max_element(slots.begin(), slots.end(), dies_before)->dies;
  live_bytes_.assign(steps, 0);
  for (const Slot& slot : slots)
    for (int64_t step = slot.born; step <= slot.dies; ++step) live_bytes_[step] += slot.size_bytes;
  weights_.assign(steps, kWeight);
  unseen_.resize(steps + 1);
}

void BottomUp::reweigh(std::mt19937& random) {
  for (int64_t& weight : weights_) weight = kWeight + random() % kSpread;
}

bool BottomUp::place(const SlotOrder& order, int64_t limit_bytes) {
  left_bytes_ = live_bytes_;
  placed_.clear();
  left_.clear();
  for (const uint32_t slot : order) left_.push_back({0, static_cast<uint32_t>(left_.size()), slot});
  while (!left_.empty()) {
    if (place_next(limit_bytes)) continue;
    for (const size_t step : stuck_) weights_[step] += kStuckWeight;
    return false;
  }
  return true;
}

bool BottomUp::place_next(int64_t limit_bytes) {
  stuck_.clear();
  looks_ += 2 * left_.size();
  int64_t roof = INT64_MAX;  // a slot that begins here or above leaves a hole that another one could fill
  for (const Candidate& other : left_) roof = std::min(roof, other.lowest + slots_[other.slot].size_bytes);
  for (size_t index = 0; index < left_.size() && left_[index].lowest < roof;) {
    heap_.clear();
    for (const int64_t lowest = left_[index].lowest; index < left_.size() && left_[index].lowest == lowest; ++index)
      heap_.emplace_back(fullest_step(slots_[left_[index].slot]), left_.size() - index);
    std::make_heap(heap_.begin(), heap_.end());
    for (; !heap_.empty(); heap_.pop_back()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const size_t next = left_.size() - heap_.back().second;
      if (!leaves_room(left_[next], limit_bytes)) continue;
      put(next);
      return true;
    }
  }
  return false;
}

// The most weighted bytes that are left at a step of a slot's life.
int64_t BottomUp::fullest_step(const Slot& slot) {
  int64_t fullest = 0;
  for (int64_t step = slot.born; step <= slot.dies; ++step)
    fullest = std::max(fullest, weights_[step] * left_bytes_[step]);
  looks_ += slot.dies - slot.born + 1;
  return fullest;
}

// Whether all that is left could still end below the limit, at each step for itself, with this slot placed next. What
// lives with it comes above it. What could still begin lower counts from where it begins: that is stricter than need
// be, and finds better packings. So slots are gone through from the lowest one: the first that lives at a step tells
// where the rest of this step begins.
bool BottomUp::leaves_room(const Candidate& next, int64_t limit_bytes) {
  const Slot& slot = slots_[next.slot];
  const int64_t end = next.lowest + slot.size_bytes;
  std::iota(unseen_.begin(), unseen_.end(), size_t{0});
  looks_ += left_.size() + unseen_.size();
  if (!has_room(slot, next.lowest, limit_bytes)) return false;
  size_t above = 0;
  for (; above < left_.size() && left_[above].lowest <= end; ++above) {
    const Candidate& other = left_[above];
    const bool is_raised = live_together(slots_[other.slot], slot);
    if (!is_raised && !has_room(slots_[other.slot], std::max(other.lowest, next.lowest), limit_bytes)) return false;
  }
  for (size_t index = 0; index < above; ++index) {
    const Slot& other = slots_[left_[index].slot];
    if (live_together(other, slot) && !has_room(other, end, limit_bytes)) return false;
  }
  for (; above < left_.size(); ++above)
    if (!has_room(slots_[left_[above].slot], left_[above].lowest, limit_bytes)) return false;
  return true;
}

// Whether what is left at the unseen steps of a slot's life ends below the limit, piled up from a floor.
bool BottomUp::has_room(const Slot& slot, int64_t floor, int64_t limit_bytes) {
  const size_t dies = slot.dies;
  for (size_t step = next_unseen(slot.born); step <= dies; step = next_unseen(step)) {
    ++looks_;
    if (floor + left_bytes_[step] > limit_bytes) {
      stuck_.push_back(step);
      return false;
    }
    unseen_[step] = step + 1;
  }
  return true;
}

size_t BottomUp::next_unseen(size_t step) {
  for (; unseen_[step] != step; ++looks_) step = unseen_[step] = unseen_[unseen_[step]];
  return step;
}

void BottomUp::put(size_t index) {
  const Candidate next = left_[index];
  const Slot& slot = slots_[next.slot];
  const int64_t end = next.lowest + slot.size_bytes;
  left_.erase(left_.begin() + static_cast<ptrdiff_t>(index));
  placed_.push_back(next.slot);
  for (int64_t step = slot.born; step <= slot.dies; ++step) left_bytes_[step] -= slot.size_bytes;
  const auto raised = std::stable_partition(left_.begin(), left_.end(), [&](const Candidate& other) {
    return other.lowest >= end || !live_together(slots_[other.slot], slot);
  });
  for (auto other = raised; other != left_.end(); ++other)
    other->lowest = aligned(end, slots_[other->slot].alignment_bytes);
  std::sort(raised, left_.end(), is_before);
  std::inplace_merge(left_.begin(), raised, left_.end(), is_before);
  looks_ += left_.size();
}

bool BottomUp::is_before(const Candidate& one, const Candidate& other) {
  return std::tie(one.lowest, one.rank) < std::tie(other.lowest, other.rank);
}

}  // namespace poet
