#include "store/pending_read.h"

#include <cstring>

#include "store/handle_table.h"

namespace poet {
namespace {

HandleTable<PendingRead>& pending_reads() {
  static auto* const instance = new HandleTable<PendingRead>;
  return *instance;
}

}  // namespace

void read_page(const PageStore& store, int64_t token, int64_t slot, const TensorLayout& layout, void* data) {
  const std::shared_ptr<Page> page = Page::find(token, store);
  Transfer transfer;
  page->prepare_read(token, slot, layout, &transfer);
  if (layout.bytes == 0) return;
  transfer.data = data;
  page->store().queue().run(transfer);
  page->require_unchanged(token);  // first: what another run wrote is not what the storage altered
  transfer.check(page->store().device());
}

std::shared_ptr<PendingRead> PendingRead::make(std::shared_ptr<PageStore> store) {
  auto read = std::make_shared<PendingRead>(std::move(store));
  read->index_ = pending_reads().add(read);
  return read;
}

std::shared_ptr<PendingRead> PendingRead::find(int64_t ticket, const PageStore& store) {
  auto read = pending_reads().find(ticket);
  if (read == nullptr || read->store_.get() != &store)
    throw Error("ticket " + std::to_string(ticket) +
                " names no page-in of this session: it is not the output of one of its PageInStart nodes in this "
                "process");
  return read;
}

void PendingRead::remove() noexcept { pending_reads().remove(index_); }

PendingRead::~PendingRead() { cancel(); }

void PendingRead::cancel() noexcept {
  if (page_ != nullptr && !store_->is_inherited()) store_->queue().cancel(transfer_);
  page_.reset();
}

int64_t PendingRead::start(int64_t token, int64_t slot, const TensorLayout& layout, void* data, bool is_watched) {
  std::shared_ptr<Page> page = Page::find(token, *store_);
  const std::lock_guard<std::mutex> user(user_);
  const std::lock_guard<std::mutex> lock(mutex_);
  cancel();  // left over by a run that was aborted
  page->prepare_read(token, slot, layout, &transfer_);
  transfer_.data = data;
  token_ = token;
  ticket_ = pending_reads().make_handle(index_);
  page_ = std::move(page);
  if (layout.bytes == 0) return ticket_;
  if (!is_watched) {
    store_->queue().run(transfer_);
    return ticket_;
  }
  std::memset(data, 0, layout.bytes);
  store_->queue().submit(transfer_);
  return ticket_;
}

std::shared_ptr<Page> PendingRead::page_of(int64_t ticket) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket != ticket_ || page_ == nullptr)
    throw Error("ticket " + std::to_string(ticket) +
                " is stale: its page-in has ended, or was started again by a later or concurrent run of its session");
  return page_;
}

void PendingRead::end(int64_t ticket, const void* data) {
  // Not under a lock: a concurrent run of the session may start the read again, which ends this wait.
  const std::shared_ptr<Page> page = page_of(ticket);
  store_->require_own();
  store_->queue().wait(transfer_);
  const std::lock_guard<std::mutex> user(user_);
  page_of(ticket);
  if (transfer_.bytes != 0 && transfer_.data != data)
    throw Error("the tensor to end paging in is not the one that was started");
  page->require_unchanged(token_);
  transfer_.check(store_->device());
  const std::lock_guard<std::mutex> lock(mutex_);
  page_.reset();
}

void PendingRead::lock_for_fork() { pending_reads().lock_for_fork(); }

void PendingRead::unlock_after_fork() { pending_reads().unlock_after_fork(); }

}  // namespace poet
