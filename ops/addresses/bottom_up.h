// Placing slots from the bottom of the region up, looking ahead: after MiniMalloc (Moffitt, ASPLOS 2023).
#ifndef POET_ADDRESSES_BOTTOM_UP_H_
#define POET_ADDRESSES_BOTTOM_UP_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "addresses/slots.h"

namespace poet {

// The next slot is one that can lie lowest, on top of those that it lives with. Of several such, it is the one whose
// life has the fullest step: the step at which most bytes are still to be placed. A slot is passed over if the rest of
// some step could no longer end below the limit with it.
//
// A try never goes back. Where it gets stuck, steps that slots were passed over for get more weight, and so their slots
// come earlier in the next try, as in searches that weigh constraints (Boussemart et al., ECAI 2004).
class BottomUp {
 public:
  explicit BottomUp(const std::vector<Slot>& slots);

  // Tries to place all slots below a limit. Of two that could be next equally well, the first in the order is.
  bool place(const SlotOrder& order, int64_t limit_bytes);

  // The slots that the last try placed, from the bottom up.
  const SlotOrder& placed() const { return placed_; }

  // Forgets where tries got stuck; draws nearly equal weights.
  void reweigh(std::mt19937& random);

  uint64_t looks() const { return looks_; }

 private:
  struct Candidate {
    int64_t lowest;  // offset above all placed slots that live at the same time
    uint32_t rank, slot;
  };

  bool place_next(int64_t limit_bytes);
  int64_t fullest_step(const Slot& slot);
  bool leaves_room(const Candidate& next, int64_t limit_bytes);
  bool has_room(const Slot& slot, int64_t floor, int64_t limit_bytes);
  size_t next_unseen(size_t step);
  void put(size_t index);
  static bool is_before(const Candidate& one, const Candidate& other);

  const std::vector<Slot>& slots_;
  std::vector<int64_t> live_bytes_;               // of each step
  std::vector<int64_t> left_bytes_;               // of them, what is not placed
  std::vector<int64_t> weights_;                  // of each step, in thousandths
  std::vector<Candidate> left_;                   // what is not placed, the lowest first
  std::vector<std::pair<int64_t, size_t>> heap_;  // the lowest of them, the one of the fullest step on top
  std::vector<size_t> unseen_;                    // for each step, itself or a step between it and the next unseen one
  std::vector<size_t> stuck_;  // steps at which the slots that were passed over would have left no room
  SlotOrder placed_;
  uint64_t looks_ = 0;
};

}  // namespace poet

#endif  // POET_ADDRESSES_BOTTOM_UP_H_
