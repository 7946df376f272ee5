// Packing: offsets for slots of memory such that no two that live at the same time overlap, in a small region.
#ifndef POET_ADDRESSES_PACKING_H_
#define POET_ADDRESSES_PACKING_H_

#include <cstdint>
#include <vector>

#include "addresses/slots.h"

namespace poet {

struct Packing {
  std::vector<int64_t> offsets;  // one for each slot
  int64_t region_bytes = INT64_MAX;
};

// Searches for a packing, beginning with those that `orders` give, until its region is no larger than `enough_bytes` or
// slots and steps were looked at `most_looks` times. Every number of looks gives one packing, the same on every
// machine. `enough_bytes` is at least the bytes of the slots that live at any step.
Packing pack(const std::vector<Slot>& slots, const std::vector<SlotOrder>& orders, int64_t enough_bytes,
             uint64_t most_looks);

}  // namespace poet

#endif  // POET_ADDRESSES_PACKING_H_
