// What one page-out node has put into the page file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "store/page_store.h"
#include "store/tensor_layout.h"

namespace poet {

// A page is a slot of its session's page file, and holds the tensor that a page-out node of that slot wrote last. The
// token that a write returns names the page and that write; it is the only way to read, and it ends with the next
// write.
class Page {
 public:
  // A page for a first node; PageStore::page has those of further nodes.
  static std::shared_ptr<Page> make(std::shared_ptr<PageStore> store, int64_t slot);
  // The page of a store that a token names. Throws Error where the store has none (any more): what another session has
  // paged out is out of reach, whatever the token.
  static std::shared_ptr<Page> find(int64_t token, const PageStore& store);

  Page(std::shared_ptr<PageStore> store, int64_t slot) : store_(std::move(store)), slot_(slot) {}
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page();
  bool attach();           // for one more node; false where the last has detached
  void detach() noexcept;  // a node goes away: after the last no token finds the page any more

  // Makes room ahead of the first write. Throws Error.
  void reserve(uint64_t bytes);

  // Writes now, and returns the token.
  int64_t write(const void* data, TensorLayout layout);
  // Starts a write and returns the token, which is good for reading after end_write. `is_watched`: the release of
  // `data` is seen by the allocation tracker; where it is not, the write is done before this returns.
  int64_t start_write(const void* data, TensorLayout layout, bool is_watched);
  void end_write(int64_t token, const void* data);

  // Throws Error unless the page still holds the tensor of a token, in this slot and layout.
  void require_readable(int64_t token, int64_t slot, const TensorLayout& layout) const;
  // Sets up a read of it; throws Error as well.
  void prepare_read(int64_t token, int64_t slot, const TensorLayout& layout, Transfer* read) const;
  // After a read: throws Error where the page was written again meanwhile, so that what was read may be mixed.
  void require_unchanged(int64_t token) const;

  PageStore& store() const { return *store_; }

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  int64_t begin(TensorLayout layout);
  void make_room(uint64_t bytes);
  void require_current(int64_t token) const;
  void require_token(int64_t token) const;
  void require_held(int64_t token, int64_t slot, const TensorLayout& layout) const;

  const std::shared_ptr<PageStore> store_;
  const int64_t slot_;
  size_t index_ = 0;  // in the table of pages
  std::atomic<int> nodes_{1};

  std::mutex writer_;         // held while a write is set up or done by the calling thread
  mutable std::mutex mutex_;  // guards what follows
  int64_t token_ = 0;         // of the last write; 0 while there is none
  bool is_complete_ = false;  // the last write can be read
  TensorLayout layout_;
  Seal seal_;
  uint64_t offset_ = 0;
  uint64_t capacity_bytes_ = 0;  // 0: no region

  Transfer transfer_;  // of start_write
};

}  // namespace poet
