#include "parameters/page_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parameters/page_sum.h"
#include "process/thread.h"

namespace poet {

PageChannel::PageChannel(uint64_t page_bytes, bool waits, Transfer read, Transfer write)
    : waits_(waits), read_(std::move(read)), write_(std::move(write)) {
  for (Staging& buffer : buffers_) buffer = Staging(page_bytes);
}

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

void PageChannel::read_ahead(const Page& page, uint64_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  const size_t slot = free_slot();
  if (slot == kSlots || count_ahead() >= kMostAhead) return;
  slots_[slot] = {State::kFree, false, false, page, place, 0, nullptr};
  queue(slot, lock);
}

void PageChannel::forget_before(uint64_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  give_back();
  for (Slot& slot : slots_)
    if (slot.state != State::kFree && !slot.is_write && slot.place < place) drop(slot);
}

const unsigned char* PageChannel::find(uint64_t offset, const uint64_t& checksum) {
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.state == State::kFree || slot.is_unwanted || slot.page.offset != offset) continue;
    if (!slot.is_write && slot.state == State::kQueued && !waits_) {
      queue_.erase(std::find(queue_.begin(), queue_.end(), i));
      slot.state = State::kFree;
      continue;  // it may be on its way to the file still
    }
    if (!slot.is_write) ended_.wait(lock, [&] { return slot.state == State::kHere || slot.state == State::kFree; });
    if (slot.state == State::kFree) return nullptr;  // it could not be read: who asks reads it again, and is told why
    lent_ = i;
    if (slot.is_write) return data(i);
    if (waits_) {
      lock.unlock();  // nobody else touches what was lent
      slot.checksum = sum(i);
    }
    return slot.checksum == checksum ? data(i) : nullptr;  // or of another time
  }
  return nullptr;
}

bool PageChannel::take(uint64_t offset, const uint64_t& checksum, Staging& block) {
  const unsigned char* const found = find(offset, checksum);
  if (found == nullptr) return false;
  const Slot& slot = slots_[lent_];
  if (slot.is_write)  // it is on its way to the file still
    std::memcpy(block.data(), found, slot.page.bytes);
  else
    block.swap(buffers_[lent_]);
  return true;
}

bool PageChannel::write(const Page& page, Staging& block, uint64_t* checksum) {
  if (waits_) *checksum = page_sum(block.data(), page.bytes, page.number);
  std::unique_lock<std::mutex> lock(mutex_);
  give_back();
  for (Slot& slot : slots_)
    if (slot.state != State::kFree && slot.page.offset == page.offset) {
      if (slot.is_write)  // else two of them could be found
        ended_.wait(lock, [&] { return slot.state == State::kFree; });
      else
        drop(slot);
    }
  if (waits_) ended_.wait(lock, [&] { return free_slot() != kSlots; });
  const size_t slot = free_slot();
  if (slot == kSlots) return false;
  block.swap(buffers_[slot]);
  slots_[slot] = {State::kFree, true, false, page, 0, 0, waits_ ? nullptr : checksum};
  queue(slot, lock);
  return true;
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
  if (slot.page.offset != end || slot.is_write != first.is_write || slot.is_unwanted) return false;
  return slot.is_write || std::none_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
           return other.is_write && other.state != State::kFree && other.page.offset == slot.page.offset;
         });
}

// Takes the next transfer out of the queue, with those that continue it.
PageChannel::Run PageChannel::next_run() {
  Run run;
  run.add(queue_.front());
  queue_.pop_front();
  const Slot& first = slots_[run.slots[0]];
  uint64_t end = first.page.offset + first.page.room_bytes;
  while (!first.is_unwanted && run.count < run.slots.size()) {
    const auto next =
        std::find_if(queue_.begin(), queue_.end(), [&](size_t number) { return continues(number, first, end); });
    if (next == queue_.end()) break;
    end += slots_[*next].page.room_bytes;
    run.add(*next);
    queue_.erase(next);
  }
  for (size_t i = 0; i < run.count; ++i) slots_[run.slots[i]].state = State::kRunning;
  return run;
}

void PageChannel::finish(const Run& run, const IoResult& result) {
  const Slot& first = slots_[run.slots[0]];
  if (first.is_write && result.error != 0 && failure_.error == 0)
    failure_ = {result.error, first.page.offset + result.done_bytes};
  for (size_t i = 0; i < run.count; ++i) {
    Slot& slot = slots_[run.slots[i]];
    if (slot.told != nullptr) *slot.told = slot.checksum;
    const bool is_here = !slot.is_write && !slot.is_unwanted && result.error == 0;
    slot.state = is_here ? State::kHere : State::kFree;
  }
  ended_.notify_all();
}

uint64_t PageChannel::sum(size_t slot) const {
  const Page& page = slots_[slot].page;
  return page_sum(data(slot), page.bytes, page.number);
}

// Makes a transfer, and the checksums of its pages where that is for this thread; nobody else touches them meanwhile.
IoResult PageChannel::transfer(const Run& run) {
  const Slot& first = slots_[run.slots[0]];
  MemoryParts parts;
  for (size_t i = 0; i < run.count; ++i) parts.add(data(run.slots[i]), slots_[run.slots[i]].page.room_bytes);
  const IoResult result = first.is_write ? write_(parts, first.page.offset) : read_(parts, first.page.offset);
  for (size_t i = 0; i < run.count && !waits_; ++i) slots_[run.slots[i]].checksum = sum(run.slots[i]);
  return result;
}

void PageChannel::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
    if (is_stopping_) return;
    const Run run = next_run();
    IoResult result;
    if (!slots_[run.slots[0]].is_unwanted) {
      lock.unlock();
      result = transfer(run);
      lock.lock();
    }
    finish(run, result);
  }
}

}  // namespace poet
