// A region of memory that serves the allocations of a session's steps at the addresses that a plan has for them.
//
// Nothing depends on the plan being right. An address is handed out only where no live block is; what the plan does not
// have, or has elsewhere than it can be, gets another part of the region or none, and then the caller asks malloc.
//
// The arena follows a run by what is asked for and released: it is in one step of the layout. A later one begins when a
// block of it is asked for and the steps before have all of theirs, or when a block is released that dies at the end of
// a step. What a kernel asks for besides may look the same; a Mark node says which step begins where that is so
// (passes/arena.py). Within a step the layout has the blocks in the order of the kernel. Where that is not so, the
// arena notices that a block goes too early, and knows better in the next run. What it learnt in a run that something
// else disturbed may be wrong: it forgets all of it when a run has more unplanned blocks than the one before.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arena/arena_layout.h"
#include "arena/arena_statistics.h"
#include "arena/live_blocks.h"
#include "arena/region.h"

namespace poet {

class Arena {
 public:
  enum class Source { kNotInStep, kRegion, kExpectedElsewhere, kUnplanned };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Takes a layout, and the region of an arena that is open, or else reserves one. `group` is of those that share one;
  // 0 is none. Throws Error where the system lacks the memory. False where the arena is in use already.
  bool open(uint64_t number, const ArenaLayout& layout, uint64_t group, std::shared_ptr<Region> region);
  // The region, where the open arena is of a group and the region has so many bytes; else nullptr.
  std::shared_ptr<Region> region_of(uint64_t group, uint64_t bytes);
  // No more runs. The region goes with its last live block.
  void close() noexcept;

  // Begins a run, which `ticket` names from now on. `previous` is the last ticket of this thread. False where another
  // thread's run, or another arena, has blocks in the region.
  bool enter(uint64_t ticket, uint64_t previous) noexcept;
  void leave(uint64_t ticket) noexcept;
  // The run of a ticket begins a step; the one behind the last: it ends.
  void reach(uint64_t ticket, uint32_t step) noexcept;

  // Asks for a block for the run of a ticket; only with kRegion `block` is set.
  Source take(uint64_t ticket, uint64_t bytes, void** block) noexcept;
  // Takes a block back that was taken or counted; false where it is not of the region.
  bool release(const void* block, uint64_t bytes) noexcept;

  // What was counted since open(); false where the arena is closed or has another number.
  bool read(uint64_t number, ArenaValues* values);
  uint64_t number();  // 0 where it is closed

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  // What is known of an entry of the layout.
  struct Known {
    uint64_t served_run = 0;
    uint64_t seen_run = 0;
    uint32_t seen = 0;     // requests of its size in seen_run that were passed by
    uint32_t to_pass = 0;  // the first so many requests of its size are workspace
  };
  static constexpr size_t kMostMistakes = 8;
  static constexpr uint32_t kMostSkipped = 4;
  static constexpr uint64_t kNoRun = ~uint64_t{0};

  // Where a request belongs: a step, and the block of it that is expected, kNoEntry: its workspace.
  struct Place {
    uint32_t step;
    uint32_t entry;
  };

  bool is_expected(uint32_t entry) const { return known_[entry].served_run != run_; }
  bool is_complete(uint32_t step) const;
  bool is_passed_by(uint32_t entry);
  Place find_place(uint64_t bytes);
  uint32_t find_entry(uint32_t step, uint64_t bytes);
  Source serve_entry(uint32_t entry, uint64_t bytes, void** block);
  Source serve_workspace(uint64_t bytes, void** block);
  Source place(uint64_t offset, uint64_t bytes, uint32_t entry, void** block);
  Source refuse(uint64_t bytes);
  void learn_from_steps();
  void learn_from_release(const LiveBlock& block);
  void remember_mistake(uint32_t entry);
  void forget_if_worse();
  void leave_if_over();
  void drop_if_unused() noexcept;

  std::mutex mutex_;
  uint64_t number_ = 0;
  std::unique_ptr<const ArenaLayout> layout_;
  uint64_t group_ = 0;
  std::shared_ptr<Region> region_;
  LiveBlocks live_{0};
  std::vector<Known> known_;
  ArenaValues values_;
  uint64_t unplanned_live_ = 0, unplanned_live_bytes_ = 0;

  uint64_t ticket_ = 0;  // of the run under way; 0: there is none
  uint64_t run_ = 0;
  uint64_t run_live_ = 0;  // live blocks of the region that were taken in this run
  uint64_t run_unplanned_ = 0;
  uint64_t last_unplanned_ = kNoRun;  // of the run before it
  uint32_t step_ = 0;
  uint32_t learnt_step_ = 0;        // the first step of which nothing is learnt
  bool outputs_are_bound_ = false;  // what is expected elsewhere is not asked for at all
  uint64_t ambiguous_bytes_ = 0;    // of a block that was taken for one expected elsewhere and might be another
  std::array<uint32_t, kMostMistakes> mistakes_{};  // entries that workspace was taken for
  size_t mistake_count_ = 0;
};

// Bytes that the runtime's allocator asks for beyond a tensor's own.
void set_allocator_extra_bytes(uint64_t bytes);

}  // namespace poet
