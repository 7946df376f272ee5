#include "parameters/page_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "process/thread.h"

namespace poet {

PageChannel::PageChannel(uint64_t page_bytes, Transfer read, Transfer write)
    : page_bytes_(page_bytes), read_(std::move(read)), write_(std::move(write)), buffers_(kSlots * page_bytes) {}

PageChannel::~PageChannel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t PageChannel::count_ahead() const {
  return static_cast<size_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state != State::kFree && !slot.is_write; }));
}

size_t PageChannel::free_slot() const {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == State::kFree; });
  return static_cast<size_t>(found - slots_.begin());
}

// A page that was read ahead for nothing; one whose transfer runs is free when that ends.
void PageChannel::drop(Slot& slot) {
  if (slot.state == State::kHere)
    slot.state = State::kFree;
  else
    slot.is_unwanted = true;
}

// The page that `find` lent is read no more.
void PageChannel::give_back() {
  if (lent_ == kSlots) return;
  Slot& slot = slots_[std::exchange(lent_, kSlots)];
  if (!slot.is_write) drop(slot);
}

bool PageChannel::has_room() {
  const std::lock_guard<std::mutex> lock(mutex_);
  give_back();
  return count_ahead() < kMostAhead && free_slot() != kSlots;
}

void PageChannel::queue(size_t slot, std::unique_lock<std::mutex>& lock) {
  if (!thread_.joinable()) thread_ = start_thread("poet-store", [this] { work(); });
  queue_.push_back(slot);  // which may fail
  slots_[slot].state = State::kQueued;
  lock.unlock();
  work_.notify_one();
}

void PageChannel::read_ahead(uint64_t offset, uint64_t bytes, uint64_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  const size_t slot = free_slot();
  if (slot == kSlots || count_ahead() >= kMostAhead) return;
  slots_[slot] = {State::kFree, false, false, offset, bytes, place};
  queue(slot, lock);
}

void PageChannel::forget_before(uint64_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  give_back();
  for (Slot& slot : slots_)
    if (slot.state != State::kFree && !slot.is_write && slot.place < place) drop(slot);
}

const unsigned char* PageChannel::find(uint64_t offset) {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.state == State::kFree || slot.is_unwanted || slot.offset != offset) continue;
    if (!slot.is_write) ended_.wait(lock, [&] { return slot.state == State::kHere || slot.state == State::kFree; });
    if (slot.state == State::kFree) return nullptr;  // it could not be read: who asks reads it again, and is told why
    lent_ = i;
    return data(i);
  }
  return nullptr;
}

void PageChannel::write(uint64_t offset, uint64_t bytes, const void* from) {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  for (Slot& slot : slots_)
    if (slot.state != State::kFree && slot.offset == offset) {
      if (slot.is_write)  // else two of them could be found
        ended_.wait(lock, [&] { return slot.state == State::kFree; });
      else
        drop(slot);
    }
  ended_.wait(lock, [&] { return free_slot() != kSlots; });
  const size_t slot = free_slot();
  std::memcpy(data(slot), from, bytes);
  slots_[slot] = {State::kFree, true, false, offset, bytes, 0};
  queue(slot, lock);
}

PageChannel::Failure PageChannel::finish_writes() {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  ended_.wait(lock, [&] {
    return std::none_of(slots_.begin(), slots_.end(),
                        [](const Slot& slot) { return slot.is_write && slot.state != State::kFree; });
  });
  return failure_;
}

PageChannel::Failure PageChannel::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

// Whether a slot that waits is the transfer behind others, which end at an offset. A page must not be read before it is
// written.
bool PageChannel::continues(size_t number, const Slot& first, uint64_t end) const {
  const Slot& slot = slots_[number];
  if (slot.offset != end || slot.is_write != first.is_write || slot.is_unwanted) return false;
  return slot.is_write || std::none_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
           return other.is_write && other.state != State::kFree && other.offset == slot.offset;
         });
}

// Takes the next transfer out of the queue, with those that continue it.
PageChannel::Run PageChannel::take() {
  Run run;
  run.add(queue_.front());
  queue_.pop_front();
  const Slot& first = slots_[run.slots[0]];
  uint64_t end = first.offset + first.bytes;
  while (!first.is_unwanted && run.count < run.slots.size()) {
    const auto next =
        std::find_if(queue_.begin(), queue_.end(), [&](size_t number) { return continues(number, first, end); });
    if (next == queue_.end()) break;
    end += slots_[*next].bytes;
    run.add(*next);
    queue_.erase(next);
  }
  for (size_t i = 0; i < run.count; ++i) slots_[run.slots[i]].state = State::kRunning;
  return run;
}

void PageChannel::finish(const Run& run, const IoResult& result) {
  const Slot& first = slots_[run.slots[0]];
  if (first.is_write && result.error != 0 && failure_.error == 0)
    failure_ = {result.error, first.offset + result.done_bytes};
  for (size_t i = 0; i < run.count; ++i) {
    Slot& slot = slots_[run.slots[i]];
    const bool is_here = !slot.is_write && !slot.is_unwanted && result.error == 0;
    slot.state = is_here ? State::kHere : State::kFree;
  }
  ended_.notify_all();
}

void PageChannel::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
    if (is_stopping_) return;
    const Run run = take();
    const Slot first = slots_[run.slots[0]];
    IoResult result;
    if (!first.is_unwanted) {
      MemoryParts parts;
      for (size_t i = 0; i < run.count; ++i) parts.add(data(run.slots[i]), slots_[run.slots[i]].bytes);
      lock.unlock();
      result = first.is_write ? write_(parts, first.offset) : read_(parts, first.offset);
      lock.lock();
    }
    finish(run, result);
  }
}

}  // namespace poet
