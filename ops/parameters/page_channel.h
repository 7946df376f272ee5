// Pages on their way from and to a parameter file, beside the step's own work: what the step will want is read ahead,
// and what it changed is written behind it. One thread makes the transfers in the order in which they were asked for,
// but those that lie one behind the other in the file are one transfer: storage takes a large one as quickly as a few
// small ones.
//
// One thread at a time calls; ParameterStore sees to that. Bytes that were written and are still under way are found as
// those that were read ahead are, so that nobody sees an older page.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "store/page_file.h"
#include "store/staging.h"

namespace poet {

class PageChannel {
 public:
  // Makes a transfer at an offset of the file; on the channel's thread.
  using Transfer = std::function<IoResult(const MemoryParts&, uint64_t offset)>;

  // A page of the file: where it lies, in how many bytes of whole blocks, and how many of them have a checksum, which
  // also depends on its number.
  struct Page {
    uint64_t offset = 0, room_bytes = 0, bytes = 0, number = 0;
  };

  // A write that failed, or no error.
  struct Failure {
    int error = 0;
    uint64_t offset = 0;
  };

  // `waits`: for a transfer that has not begun, too, and makes checksums meanwhile, for storage is what takes time.
  // Otherwise the caller makes such a transfer, as is quicker in the page cache where the channel's thread has no core,
  // and the channel's thread makes checksums, for copies take less time than the step.
  PageChannel(uint64_t page_bytes, bool waits, Transfer read, Transfer write);
  PageChannel(const PageChannel&) = delete;
  PageChannel& operator=(const PageChannel&) = delete;
  ~PageChannel();  // what is still to be written is lost

  // Whether one more page can be read ahead.
  bool has_room();
  // Reads a page ahead, which is wanted at a place in the step's order. Throws Error where no thread can be started.
  void read_ahead(const Page& page, uint64_t place);
  // Drops what was read ahead for places before this one.
  void forget_before(uint64_t place);

  // The bytes at an offset, if they are here or come, and have a checksum: to be read until the next call. Otherwise
  // nothing. What `checksum` is may change until then: it may be where `write` tells it.
  const unsigned char* find(uint64_t offset, const uint64_t& checksum);

  // The same bytes in a block of a page; the channel keeps what memory the block had where that saves a copy.
  bool take(uint64_t offset, const uint64_t& checksum, Staging& block);

  // Writes a page some time; returns as soon as it has the block's memory, for which it leaves other, and tells the
  // checksum before the page is no longer found. False: there is no room. Throws Error where no thread can be started.
  bool write(const Page& page, Staging& block, uint64_t* checksum);
  // Waits until all is written; returns the first write that failed since the channel was made.
  Failure finish_writes();
  Failure failure();

  uint64_t buffer_bytes() const { return kSlots * buffers_[0].bytes(); }

 private:
  // Adam reads three pages and writes three: with more of them ahead, writes find no slot, and the step makes them.
  static constexpr size_t kSlots = 12, kMostAhead = 5;
  enum class State { kFree, kQueued, kRunning, kHere };  // kHere: was read, and nobody took it yet
  struct Slot {
    State state = State::kFree;
    bool is_write = false;
    bool is_unwanted = false;  // free when its transfer ends
    Page page;
    uint64_t place = 0;
    uint64_t checksum = 0;     // of what is here
    uint64_t* told = nullptr;  // where the checksum of a write goes that is not made yet
  };

  // Slots that are one transfer.
  struct Run {
    std::array<size_t, MemoryParts::kMost> slots{};
    size_t count = 0;
    void add(size_t slot) { slots[count++] = slot; }
  };

  uint64_t sum(size_t slot) const;
  unsigned char* data(size_t slot) const { return buffers_[slot].data(); }
  size_t count_ahead() const;
  size_t free_slot() const;  // kSlots: there is none
  void drop(Slot& slot);
  void queue(size_t slot, std::unique_lock<std::mutex>& lock);
  void give_back();
  bool continues(size_t slot, const Slot& first, uint64_t end) const;
  Run next_run();
  IoResult transfer(const Run& run);
  void finish(const Run& run, const IoResult& result);
  void work();

  const bool waits_;
  const Transfer read_, write_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::array<Slot, kSlots> slots_;
  std::array<Staging, kSlots> buffers_;  // of the slots
  std::deque<size_t> queue_;
  size_t lent_ = kSlots;  // that `find` gave
  Failure failure_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace poet
