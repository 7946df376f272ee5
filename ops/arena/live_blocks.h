// The blocks of a region that are alive, by address.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arena/arena_layout.h"

namespace poet {

constexpr uint32_t kNoEntry = UINT32_MAX;

struct LiveBlock {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t run = 0;           // in which it was taken
  uint32_t step = 0;          // in which it was taken
  uint32_t entry = kNoEntry;  // of the layout that it was taken for; else workspace
  uint64_t end() const { return offset + bytes; }
};

class LiveBlocks {
 public:
  explicit LiveBlocks(size_t expected) { blocks_.reserve(expected); }

  bool empty() const { return blocks_.empty(); }
  size_t size() const { return blocks_.size(); }
  std::vector<LiveBlock>::iterator begin() { return blocks_.begin(); }
  std::vector<LiveBlock>::iterator end() { return blocks_.end(); }

  bool overlaps(uint64_t offset, uint64_t bytes) const {
    const auto next = behind(offset);
    return next != blocks_.end() && next->offset < offset + bytes;
  }

  // Throws std::bad_alloc. The block may not overlap another.
  void insert(const LiveBlock& block) { blocks_.insert(behind(block.offset), block); }

  // Takes out the block that begins at `offset`; false where none does.
  bool erase(uint64_t offset, LiveBlock* erased) {
    const auto found = behind(offset);
    if (found == blocks_.end() || found->offset != offset) return false;
    *erased = *found;
    blocks_.erase(found);
    return true;
  }

  // The lowest aligned offset from `begin` on at which `bytes` bytes end at or before `end` and touch no block.
  // `blocked(offset, bytes)` returns the end of what else is in the way there, or 0.
  template <class Blocked>
  bool first_fit(uint64_t begin, uint64_t end, uint64_t bytes, Blocked&& blocked, uint64_t* found) const {
    uint64_t at = aligned(begin);
    auto next = behind(at);
    while (at <= end && bytes <= end - at) {
      if (next != blocks_.end() && next->offset < at + bytes) {
        at = aligned(std::max(at, next->end()));
        ++next;
      } else if (const uint64_t past = blocked(at, bytes)) {
        at = aligned(past);
        while (next != blocks_.end() && next->end() <= at) ++next;
      } else {
        *found = at;
        return true;
      }
    }
    return false;
  }

 private:
  // The first block that ends behind an offset.
  std::vector<LiveBlock>::const_iterator behind(uint64_t offset) const {
    return std::partition_point(blocks_.begin(), blocks_.end(),
                                [&](const LiveBlock& block) { return block.end() <= offset; });
  }

  std::vector<LiveBlock> blocks_;
};

}  // namespace poet
