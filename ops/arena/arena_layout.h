// Where a plan has the blocks of a step: what a region is divided by.
#pragma once

#include <cstdint>
#include <vector>

namespace poet {

constexpr uint64_t kBlockAlignment = 64;

inline uint64_t aligned(uint64_t bytes) { return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment; }

class ArenaLayout {
 public:
  struct Entry {
    int64_t offset;  // below 0: expected, but not in the region
    uint64_t bytes;
    uint32_t dies;  // the last step in which it is alive
    bool is_planned() const { return offset >= 0; }
  };
  struct Step {
    uint64_t workspace_offset = 0;
    uint64_t workspace_bytes = 0;
    uint32_t first = 0;    // of its entries
    uint32_t end = 0;      // behind the last
    uint32_t planned = 0;  // entries in the region
  };

  // Reads, for every step, `workspace_offset, workspace_bytes, count` and `count` times `offset, bytes, dies`. Throws
  // Error where that cannot be a layout of a region.
  ArenaLayout(int64_t region_bytes, const std::vector<int64_t>& numbers);

  uint64_t region_bytes() const { return region_bytes_; }
  uint32_t step_count() const { return static_cast<uint32_t>(steps_.size()); }
  const Step& step(uint32_t index) const { return steps_[index]; }
  const Entry& entry(uint32_t index) const { return entries_[index]; }
  uint32_t entry_count() const { return static_cast<uint32_t>(entries_.size()); }
  // Most blocks of the region that are alive at once.
  uint32_t most_alive() const { return most_alive_; }

  // The first step from `index` on with blocks in the region; step_count() where there is none.
  uint32_t next_planned(uint32_t index) const { return next_planned_[index]; }
  // The first step from `index` on with a workspace.
  uint32_t next_workspace(uint32_t index) const { return next_workspace_[index]; }
  // The first step from `index` on that may ask for memory.
  uint32_t next_asking(uint32_t index) const { return next_asking_[index]; }
  // The first step from `index` on at whose begin nothing of the region is alive.
  uint32_t next_empty(uint32_t index) const { return next_empty_[index]; }

 private:
  void derive();

  uint64_t region_bytes_;
  std::vector<Step> steps_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> next_planned_, next_workspace_, next_asking_, next_empty_;
  uint32_t most_alive_ = 0;
};

}  // namespace poet
