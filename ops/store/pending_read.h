// The asynchronous read of one page-in node.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "store/page.h"

namespace poet {

// Reads the page of `token` in a store into `data` now. Throws Error.
void read_page(const PageStore& store, int64_t token, int64_t slot, const TensorLayout& layout, void* data);

class PendingRead {
 public:
  static std::shared_ptr<PendingRead> make(std::shared_ptr<PageStore> store);
  // The read of a store that a ticket names. Throws Error where the store has none (any more).
  static std::shared_ptr<PendingRead> find(int64_t ticket, const PageStore& store);

  explicit PendingRead(std::shared_ptr<PageStore> store) : store_(std::move(store)) {}
  PendingRead(const PendingRead&) = delete;
  PendingRead& operator=(const PendingRead&) = delete;
  ~PendingRead();
  void remove() noexcept;  // the node goes away: no ticket finds the read any more

  // Starts to read the page of `token` into `data` and returns a ticket. `is_watched`: the release of `data` is seen by
  // the allocation tracker; where it is not, the read is done before this returns. A graph may hand `data` to others
  // before the end of the read: they find zeros or the page there, and nothing that was in that memory before.
  int64_t start(int64_t token, int64_t slot, const TensorLayout& layout, void* data, bool is_watched);
  // Returns when `data` holds the page. Throws Error where the read failed, or is not this ticket's.
  void end(int64_t ticket, const void* data);

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  std::shared_ptr<Page> page_of(int64_t ticket) const;
  void cancel() noexcept;

  const std::shared_ptr<PageStore> store_;
  size_t index_ = 0;          // in the table of reads
  std::mutex user_;           // held while a read is set up or ended
  mutable std::mutex mutex_;  // guards what follows
  int64_t ticket_ = 0;
  int64_t token_ = 0;
  std::shared_ptr<Page> page_;  // while the read is not ended
  Transfer transfer_;
};

}  // namespace poet
