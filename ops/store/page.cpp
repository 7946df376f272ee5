#include "store/page.h"

#include "store/handle_table.h"

namespace poet {
namespace {

HandleTable<Page>& pages() {
  static auto* const instance = new HandleTable<Page>;
  return *instance;
}

std::string describe(const TensorLayout& layout) {
  return "element type " + std::to_string(layout.dtype) + ", shape " + to_string(layout.shape) + ", " +
         std::to_string(layout.bytes) + " bytes";
}

}  // namespace

std::shared_ptr<Page> Page::make(std::shared_ptr<PageStore> store, int64_t slot) {
  auto page = std::make_shared<Page>(std::move(store), slot);
  page->index_ = pages().add(page);
  return page;
}

std::shared_ptr<Page> Page::find(int64_t token, const PageStore& store) {
  auto page = pages().find(token);
  if (page == nullptr || &page->store() != &store)
    throw Error("token " + std::to_string(token) +
                " names no page of this session: it is not the output of one of its page-out nodes in this process");
  return page;
}

bool Page::attach() {
  int nodes = nodes_.load();
  while (nodes != 0 && !nodes_.compare_exchange_weak(nodes, nodes + 1)) {
  }
  return nodes != 0;
}

void Page::detach() noexcept {
  if (nodes_.fetch_sub(1) != 1) return;
  pages().remove(index_);
  if (store_->is_inherited()) return;
  // Reads that are under way may keep this object: the slot may be another page's from now on.
  store_->queue().cancel(transfer_);
  const std::lock_guard<std::mutex> lock(mutex_);
  token_ = 0;
}

Page::~Page() {
  if (!store_->is_inherited()) store_->queue().cancel(transfer_);
}

void Page::reserve(uint64_t bytes) {
  const std::lock_guard<std::mutex> writer(writer_);
  store_->queue().cancel(transfer_);
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room(bytes);
}

// The caller holds both locks, and nothing is in flight.
void Page::make_room(uint64_t bytes) {
  if (bytes <= capacity_bytes_) return;
  // What was written is where the slot was: no token may end or read it any more, wherever this ends.
  token_ = 0;
  capacity_bytes_ = 0;
  offset_ = store_->take(slot_, bytes);
  capacity_bytes_ = bytes;
}

// Ends the last write's token and makes a new one. The caller holds `writer_`.
int64_t Page::begin(TensorLayout layout) {
  store_->require_own();
  store_->queue().cancel(transfer_);  // left over by a run that was aborted
  const uint64_t bytes = layout.bytes;
  int64_t token = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    make_room(bytes);
    token = token_ = pages().make_handle(index_);
    is_complete_ = false;
    layout_ = std::move(layout);
  }
  transfer_.state.store(TransferState::kIdle, std::memory_order_relaxed);
  transfer_.is_write = true;
  transfer_.slot = slot_;
  transfer_.bytes = bytes;
  transfer_.offset = offset_;
  transfer_.seal.generation = store_->device().next_generation();
  transfer_.result = IoResult{};
  return token;
}

int64_t Page::write(const void* data, TensorLayout layout) {
  const std::lock_guard<std::mutex> writer(writer_);
  const int64_t token = begin(std::move(layout));
  transfer_.data = const_cast<void*>(data);
  if (transfer_.bytes != 0) store_->queue().run(transfer_);
  transfer_.check(store_->device());
  const std::lock_guard<std::mutex> lock(mutex_);
  seal_ = transfer_.seal;
  is_complete_ = true;
  return token;
}

int64_t Page::start_write(const void* data, TensorLayout layout, bool is_watched) {
  const std::lock_guard<std::mutex> writer(writer_);
  const int64_t token = begin(std::move(layout));
  transfer_.data = const_cast<void*>(data);
  if (transfer_.bytes == 0) return token;
  if (is_watched)
    store_->queue().submit(transfer_);
  else
    store_->queue().run(transfer_);
  return token;
}

void Page::end_write(int64_t token, const void* data) {
  store_->require_own();
  require_current(token);
  store_->queue().wait(transfer_);
  const std::lock_guard<std::mutex> writer(writer_);
  require_current(token);  // no other run may have used the transfer meanwhile
  if (transfer_.bytes != 0 && transfer_.data != data)
    throw Error("the tensor to end paging out is not the one that was started for slot " + std::to_string(slot_));
  transfer_.check(store_->device());
  const std::lock_guard<std::mutex> lock(mutex_);
  seal_ = transfer_.seal;
  is_complete_ = true;
}

void Page::require_current(int64_t token) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_token(token);
}

// The caller holds the lock.
void Page::require_token(int64_t token) const {
  if (token != token_)
    throw Error("token " + std::to_string(token) + " is stale: slot " + std::to_string(slot_) +
                " has been written again since (by a later or concurrent run of its session), or moved");
}

// The caller holds the lock.
void Page::require_held(int64_t token, int64_t slot, const TensorLayout& layout) const {
  require_token(token);
  if (!is_complete_)
    throw Error("slot " + std::to_string(slot_) + " cannot be read: its page-out failed or has not ended");
  if (slot != slot_)
    throw Error("the token is of slot " + std::to_string(slot_) + ", but the node declares slot " +
                std::to_string(slot));
  if (layout.dtype != layout_.dtype || layout.shape != layout_.shape)
    throw Error("slot " + std::to_string(slot_) + " holds " + describe(layout_) + ", but the node declares " +
                describe(layout));
}

void Page::require_readable(int64_t token, int64_t slot, const TensorLayout& layout) const {
  store_->require_own();
  const std::lock_guard<std::mutex> lock(mutex_);
  require_held(token, slot, layout);
}

void Page::prepare_read(int64_t token, int64_t slot, const TensorLayout& layout, Transfer* read) const {
  store_->require_own();
  const std::lock_guard<std::mutex> lock(mutex_);
  require_held(token, slot, layout);
  read->state.store(TransferState::kIdle, std::memory_order_relaxed);
  read->is_write = false;
  read->slot = slot;
  read->bytes = layout.bytes;
  read->offset = offset_;
  read->seal = seal_;
  read->result = IoResult{};
}

void Page::require_unchanged(int64_t token) const { require_current(token); }

void Page::lock_for_fork() { pages().lock_for_fork(); }

void Page::unlock_after_fork() { pages().unlock_after_fork(); }

}  // namespace poet
