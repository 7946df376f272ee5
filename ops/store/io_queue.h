// One I/O channel: transfers between memory and the page file, in the order in which they were started.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "store/page_device.h"

namespace poet {

enum class TransferState { kIdle, kQueued, kRunning, kDone, kCancelled };

// One transfer. Its owner keeps it alive until it is in flight no more (IoQueue::wait or cancel).
struct Transfer {
  bool is_write = false;
  int64_t slot = 0;
  void* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;

  std::atomic<TransferState> state{TransferState::kIdle};
  Seal seal;  // a write makes it, a read checks it; its generation comes from the caller
  IoResult result;
  Clock::time_point submitted_at;

  Transfer* previous = nullptr;  // links of the queue's list
  Transfer* next = nullptr;
  bool is_watched = false;

  bool is_in_flight() const {
    const TransferState now = state.load(std::memory_order_acquire);
    return now == TransferState::kQueued || now == TransferState::kRunning;
  }
  // The failure as an Error, or nothing where all bytes were transferred.
  void check(const PageDevice& device) const;
};

// The queue is bounded: where it is full, starting one more transfer waits for the first to end.
//
// The queue's thread starts with the first transfer that is not waited for, and sleeps while there is nothing to do.
//
// A run that ONNX Runtime aborts between a start and an end operator frees the buffers of transfers in flight. The
// allocation tracker tells before each such release: a transfer that has not begun is taken off the queue, one that has
// begun is waited for, so that the thread never touches freed memory.
class IoQueue {
 public:
  explicit IoQueue(PageDevice& device);
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;
  ~IoQueue();  // nothing may be in flight

  void submit(Transfer& transfer);      // starts it and returns; throws Error where no thread can be started
  void run(Transfer& transfer);         // returns when it has ended; on this thread where the channel is free
  void wait(const Transfer& transfer);  // until it is not in flight
  void cancel(Transfer& transfer);      // afterwards it is not in flight and its buffer is not touched

  // Cancels what is in flight from or to these bytes, in every queue of the process.
  static void release_memory(const void* data, uint64_t bytes);

  // Around fork(): a child has none of the threads, so it forgets the queues.
  static void lock_for_fork();
  static void unlock_after_fork(bool in_child);

 private:
  void append(Transfer& transfer, std::unique_lock<std::mutex>& lock);
  void unlink(Transfer& transfer);
  void carry_out(Transfer& transfer, std::unique_lock<std::mutex>& lock);
  void finish(Transfer& transfer, TransferState state);
  void start_thread();
  void work();
  void release(const void* data, uint64_t bytes);
  Transfer* find_overlap(const void* data, uint64_t bytes) const;

  PageDevice& device_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;
  Transfer* first_ = nullptr;
  Transfer* last_ = nullptr;
  Transfer* running_ = nullptr;
  size_t length_ = 0;  // of the list
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace poet
