// The asynchronous read of one page-in node.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "page.h"

namespace poet {

// Reads the page of `token` into `data` now. Throws Error.
void read_page(int64_t token, int64_t slot, const TensorLayout& layout, void* data);

class PendingRead {
 public:
  static std::shared_ptr<PendingRead> make();
  // The read that a ticket names. Throws Error where there is none (any more).
  static std::shared_ptr<PendingRead> find(int64_t ticket);

  PendingRead() = default;
  PendingRead(const PendingRead&) = delete;
  PendingRead& operator=(const PendingRead&) = delete;
  ~PendingRead();
  void remove() noexcept;  // the node goes away: no ticket finds the read any more

  // Starts to read the page of `token` into `data` and returns a ticket. `is_watched`: the release of `data` is seen by
  // the allocation tracker; where it is not, the read is done before this returns.
  int64_t start(int64_t token, int64_t slot, const TensorLayout& layout, void* data, bool is_watched);
  // Returns when `data` holds the page. Throws Error where the read failed, or is not this ticket's.
  void end(int64_t ticket, const void* data);

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  std::shared_ptr<Page> page_of(int64_t ticket) const;
  void cancel() noexcept;

  size_t index_ = 0;          // in the table of reads
  std::mutex user_;           // held while a read is set up or ended
  mutable std::mutex mutex_;  // guards what follows
  int64_t ticket_ = 0;
  int64_t token_ = 0;
  std::shared_ptr<Page> page_;  // while the read is not ended
  Transfer transfer_;
};

}  // namespace poet
