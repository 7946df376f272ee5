// Two searches take turns. One places slots from the bottom up, see bottom_up.h. The other is squeaky-wheel
// optimization (Joslin, Clements, Journal of AI Research 10, 1999): slots are placed in an order, each as low as those
// that were placed before let it. The first that does not fit below a limit moves to before one that is in its way, and
// all that stand behind that place are placed anew. What either finds sets the limits of both.
#include "addresses/packing.h"

#include <algorithm>
#include <random>
#include <utility>

#include "addresses/bottom_up.h"

namespace poet {
namespace {

constexpr size_t kStarts = 3;              // as many of the given orders, the best ones, do walks start from
constexpr int kMoves[] = {300, 1000};      // of one walk before another one begins; walks of either length take turns
constexpr int kShortenings[] = {2, 4, 6};  // of the ways that slots move in a walk, drawn for each: see blocker
constexpr int kLimits = 5;  // between what is enough and the best packing, of which a try from the bottom up has one
constexpr size_t kSameWeights = 10;  // tries from the bottom up with weights that grow; then they are drawn anew

// Slots placed in an order that may change behind any position and be placed anew from there. Any packing can only get
// lower if its slots are placed this way from the bottom up: so some order gives the best there is.
class LowestFit {
 public:
  explicit LowestFit(const std::vector<Slot>& slots) : slots_(slots) { placed_.reserve(slots.size()); }

  // Places what stands from `first` on and returns the position of the first slot that ends beyond the limit, or the
  // number of slots. That slot is placed too, those behind it are not.
  size_t place(const SlotOrder& order, size_t first, int64_t limit_bytes) {
    const auto stale = [first](const Placed& placed) { return placed.position >= first; };
    placed_.erase(std::remove_if(placed_.begin(), placed_.end(), stale), placed_.end());
    for (size_t position = first; position < order.size(); ++position) {
      const Slot& slot = slots_[order[position]];
      const int64_t start = lowest(slot), end = start + slot.size_bytes;
      const auto above = [](int64_t offset, const Placed& placed) { return offset < placed.start; };
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), start, above),
                     {start, end, slot.born, slot.dies, position});
      if (end > limit_bytes) return position;
    }
    return order.size();
  }

  // The position of the first slot in the order that ends where the region does.
  size_t highest() const {
    const auto is_lower = [](const Placed& one, const Placed& other) {
      return std::make_pair(one.end, other.position) < std::make_pair(other.end, one.position);
    };
    return std::max_element(placed_.begin(), placed_.end(), is_lower)->position;
  }

  Packing packing(const SlotOrder& order) const {
    Packing packing{std::vector<int64_t>(order.size()), 0};
    for (const Placed& placed : placed_) {
      packing.offsets[order[placed.position]] = placed.start;
      packing.region_bytes = std::max(packing.region_bytes, placed.end);
    }
    return packing;
  }

  uint64_t looks() const { return looks_; }

 private:
  struct Placed {
    int64_t start, end, born, dies;
    size_t position;
  };

  // The lowest start of a gap between those placed slots that live at the same time that is large enough.
  int64_t lowest(const Slot& slot) {
    int64_t free_from = 0;
    size_t index = 0;
    for (; index < placed_.size(); ++index) {
      const Placed& placed = placed_[index];
      if (placed.born > slot.dies || placed.dies < slot.born) continue;
      if (placed.start - free_from >= slot.size_bytes) break;
      free_from = std::max(free_from, aligned(placed.end, slot.alignment_bytes));
    }
    looks_ += index;
    return free_from;
  }

  const std::vector<Slot>& slots_;
  std::vector<Placed> placed_;  // from the bottom up
  uint64_t looks_ = 0;
};

class Search {
 public:
  Search(const std::vector<Slot>& slots, int64_t enough_bytes, uint64_t most_looks)
      : slots_(slots), enough_bytes_(enough_bytes), most_looks_(most_looks), lowest_fit_(slots), bottom_up_(slots) {}

  Packing run(const std::vector<SlotOrder>& orders) {
    std::vector<std::pair<int64_t, const SlotOrder*>> starts;
    for (const SlotOrder& order : orders) {
      lowest_fit_.place(order, 0, INT64_MAX);
      const int64_t region_bytes = lowest_fit_.packing(order).region_bytes;
      starts.emplace_back(region_bytes, &order);
      if (region_bytes < best_.region_bytes) keep(order);
      if (best_.region_bytes <= enough_bytes_) return best_;
    }
    std::stable_sort(starts.begin(), starts.end(),
                     [](const auto& one, const auto& other) { return one.first < other.first; });
    const size_t few = std::min(kStarts, starts.size());
    for (size_t walks = 0, tries = 0; !is_done(); ++walks) {
      for (; !is_done() && bottom_up_.looks() <= lowest_fit_.looks(); ++tries) {
        if (tries % kSameWeights == kSameWeights - 1) bottom_up_.reweigh(random_);
        climb(orders[tries % orders.size()]);
      }
      const SlotOrder& start = walks % 2 == 0 ? best_order_ : *starts[walks / 2 % few].second;
      walk(start, kMoves[walks / 2 % 2], kShortenings[random_() % 3]);
    }
    return best_;
  }

 private:
  bool is_done() const {
    return best_.region_bytes <= enough_bytes_ || lowest_fit_.looks() + bottom_up_.looks() >= most_looks_;
  }

  void keep(const SlotOrder& order) {
    best_ = lowest_fit_.packing(order);
    best_order_ = order;
  }

  // Places slots from the bottom up below a limit that is drawn.
  void climb(const SlotOrder& order) {
    const int64_t part_bytes = (best_.region_bytes - 1 - enough_bytes_) / (kLimits - 1);
    if (!bottom_up_.place(order, enough_bytes_ + part_bytes * static_cast<int64_t>(random_() % kLimits))) return;
    lowest_fit_.place(bottom_up_.placed(), 0, INT64_MAX);
    keep(bottom_up_.placed());
  }

  // Moves slots that do not fit below the best region forward in an order, as many times as `moves`.
  void walk(SlotOrder order, int moves, int shortenings) {
    size_t first = 0;
    for (int move = 0; move < moves && !is_done(); ++move) {
      size_t stuck = lowest_fit_.place(order, first, best_.region_bytes - 1);
      if (stuck == order.size()) {
        keep(order);
        if (is_done()) return;
        stuck = lowest_fit_.highest();
      }
      first = blocker(order, stuck, shortenings);
      const auto at = [&order](size_t position) { return order.begin() + static_cast<ptrdiff_t>(position); };
      std::rotate(at(first), at(stuck), at(stuck + 1));
    }
  }

  // The position of one of the slots before a stuck one that live at the same time; there are some, for it lies on
  // them. The later one stands, the more likely it is: most slots that do not fit need to move a little, few need to
  // move far.
  size_t blocker(const SlotOrder& order, size_t stuck, int shortenings) {
    const Slot& slot = slots_[order[stuck]];
    blockers_.clear();
    for (size_t position = 0; position < stuck; ++position) {
      const Slot& other = slots_[order[position]];
      if (live_together(other, slot)) blockers_.push_back(position);
    }
    size_t back = blockers_.size();
    for (int i = 0; i < shortenings; ++i) back = 1 + random_() % back;
    return blockers_[blockers_.size() - back];
  }

  const std::vector<Slot>& slots_;
  const int64_t enough_bytes_;
  const uint64_t most_looks_;
  LowestFit lowest_fit_;
  BottomUp bottom_up_;
  std::mt19937 random_;
  std::vector<size_t> blockers_;
  Packing best_;
  SlotOrder best_order_;
};

}  // namespace

Packing pack(const std::vector<Slot>& slots, const std::vector<SlotOrder>& orders, int64_t enough_bytes,
             uint64_t most_looks) {
  return Search(slots, enough_bytes, most_looks).run(orders);
}

}  // namespace poet
