#include "store/io_queue.h"

#include <algorithm>
#include <string>
#include <vector>

#include "process/error.h"
#include "process/thread.h"
#include "runtime/allocation_tracker.h"

namespace poet {
namespace {

constexpr size_t kMaxLength = 256;

struct Queues {
  std::mutex mutex;
  std::vector<IoQueue*> queues;
  std::atomic<uint64_t> watched{0};  // transfers in flight that nobody waits for
};

// Never destroyed: memory is released until the process has gone.
Queues& queues() {
  static Queues* const instance = new Queues;
  return *instance;
}

}  // namespace

void Transfer::check(const PageDevice& device) const {
  const bool is_cancelled = state.load(std::memory_order_acquire) == TransferState::kCancelled;
  if (!is_cancelled && result.error == 0) return;
  const std::string what = std::string("cannot ") + (is_write ? "write slot " : "read slot ") + std::to_string(slot) +
                           (is_write ? " to" : " from") + " the page file in " + device.file().directory() + ": ";
  if (is_cancelled) throw Error(what + "the transfer was cancelled because its memory was released");
  throw Error(what + error_text(result.error) + ", after " + std::to_string(result.done_bytes) + " of " +
              std::to_string(bytes) + " bytes at offset " + std::to_string(offset));
}

IoQueue::IoQueue(PageDevice& device) : device_(device) {
  Queues& r = queues();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.queues.push_back(this);
  allocations::set_release_hook(release_memory);
}

IoQueue::~IoQueue() {
  {
    Queues& r = queues();
    const std::lock_guard<std::mutex> lock(r.mutex);
    r.queues.erase(std::remove(r.queues.begin(), r.queues.end(), this), r.queues.end());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void IoQueue::append(Transfer& transfer, std::unique_lock<std::mutex>& lock) {
  finished_.wait(lock, [&] { return length_ < kMaxLength; });
  ++length_;
  transfer.previous = last_;
  transfer.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &transfer;
  last_ = &transfer;
  transfer.state.store(TransferState::kQueued, std::memory_order_release);
}

void IoQueue::unlink(Transfer& transfer) {
  --length_;
  (transfer.previous != nullptr ? transfer.previous->next : first_) = transfer.next;
  (transfer.next != nullptr ? transfer.next->previous : last_) = transfer.previous;
}

// The caller holds the lock; the transfer may be gone as soon as its state is set.
void IoQueue::finish(Transfer& transfer, TransferState state) {
  // Release, so that a thread which sees no transfer left may reuse the buffers.
  if (transfer.is_watched) queues().watched.fetch_sub(1, std::memory_order_release);
  transfer.state.store(state, std::memory_order_release);
  finished_.notify_all();
}

// Moves the bytes on this thread, without the lock meanwhile; the channel was free.
void IoQueue::carry_out(Transfer& transfer, std::unique_lock<std::mutex>& lock) {
  running_ = &transfer;
  transfer.state.store(TransferState::kRunning, std::memory_order_release);
  lock.unlock();
  device_.carry_out(transfer);
  lock.lock();
  running_ = nullptr;
  finish(transfer, TransferState::kDone);
}

void IoQueue::start_thread() {
  if (!thread_.joinable()) thread_ = poet::start_thread("poet-io", [this] { work(); });
}

void IoQueue::submit(Transfer& transfer) {
  transfer.submitted_at = Clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    start_thread();
    transfer.is_watched = true;
    queues().watched.fetch_add(1, std::memory_order_relaxed);
    append(transfer, lock);
  }
  work_.notify_one();
}

void IoQueue::run(Transfer& transfer) {
  transfer.submitted_at = Clock::now();
  transfer.is_watched = false;
  std::unique_lock<std::mutex> lock(mutex_);
  if (first_ != nullptr || running_ != nullptr) {
    start_thread();
    append(transfer, lock);
    work_.notify_one();
    finished_.wait(lock, [&] { return !transfer.is_in_flight(); });
  } else {
    carry_out(transfer, lock);
    if (first_ != nullptr) work_.notify_one();
  }
  lock.unlock();
  device_.add_wait(nanoseconds_since(transfer.submitted_at));
}

void IoQueue::wait(const Transfer& transfer) {
  if (!transfer.is_in_flight()) return;
  const Clock::time_point start = Clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return !transfer.is_in_flight(); });
  lock.unlock();
  device_.add_wait(nanoseconds_since(start));
}

void IoQueue::cancel(Transfer& transfer) {
  if (!transfer.is_in_flight()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (transfer.state.load(std::memory_order_acquire) == TransferState::kQueued) {
    unlink(transfer);
    finish(transfer, TransferState::kCancelled);
  } else {
    finished_.wait(lock, [&] { return !transfer.is_in_flight(); });
  }
}

void IoQueue::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return is_stopping_ || (first_ != nullptr && running_ == nullptr); });
    if (first_ == nullptr || running_ != nullptr) return;
    Transfer& transfer = *first_;
    unlink(transfer);
    carry_out(transfer, lock);
  }
}

Transfer* IoQueue::find_overlap(const void* data, uint64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const auto overlaps = [&](const Transfer& transfer) {
    const auto at = reinterpret_cast<uintptr_t>(transfer.data);
    return at < begin + bytes && begin < at + transfer.bytes;
  };
  if (running_ != nullptr && overlaps(*running_)) return running_;
  for (Transfer* transfer = first_; transfer != nullptr; transfer = transfer->next)
    if (overlaps(*transfer)) return transfer;
  return nullptr;
}

void IoQueue::release(const void* data, uint64_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (Transfer* transfer = find_overlap(data, bytes)) {
    if (transfer == running_) {
      finished_.wait(lock);
    } else {
      unlink(*transfer);
      finish(*transfer, TransferState::kCancelled);
    }
  }
}

void IoQueue::release_memory(const void* data, uint64_t bytes) {
  Queues& r = queues();
  if (r.watched.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard<std::mutex> lock(r.mutex);
  for (IoQueue* queue : r.queues) queue->release(data, bytes);
}

void IoQueue::lock_for_fork() { queues().mutex.lock(); }

void IoQueue::unlock_after_fork(bool in_child) {
  Queues& r = queues();
  if (in_child) {
    r.queues.clear();
    r.watched.store(0, std::memory_order_relaxed);
  }
  r.mutex.unlock();
}

}  // namespace poet
