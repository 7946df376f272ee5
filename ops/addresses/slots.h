// Slots of memory, and orders in which they are placed.
#ifndef POET_ADDRESSES_SLOTS_H_
#define POET_ADDRESSES_SLOTS_H_

#include <cstdint>
#include <vector>

namespace poet {

// A piece of the region that one block needs from its first step to its last one; see poet_onnx/addresses/slots.py.
struct Slot {
  int64_t born, dies, size_bytes, alignment_bytes;
};

using SlotOrder = std::vector<uint32_t>;  // every slot once, by its index

inline bool live_together(const Slot& one, const Slot& other) {
  return one.born <= other.dies && other.born <= one.dies;
}

inline int64_t aligned(int64_t offset, int64_t alignment_bytes) {  // to a power of two
  return (offset + alignment_bytes - 1) & -alignment_bytes;
}

}  // namespace poet

#endif  // POET_ADDRESSES_SLOTS_H_
