// Numbers that name live objects in tokens and tickets: one int64 says which object and which use of it.
#pragma once

#include <sys/random.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "process/error.h"

namespace poet {

// A handle holds the object's index and a serial number that no other use of any object has (it wraps after 2^42 uses).
constexpr int kSerialBits = 42;
constexpr int64_t kSerialMask = (int64_t{1} << kSerialBits) - 1;
constexpr size_t kMaxObjects = size_t{1} << (62 - kSerialBits);

// The next serial number. They start at a random number, so that a token of another process names nothing in this one.
inline int64_t next_serial() {
  static std::atomic<uint64_t> last{[] {
    uint64_t start = 0;
    return getrandom(&start, sizeof start, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof start) ? start : 0;
  }()};
  return static_cast<int64_t>(last.fetch_add(1, std::memory_order_relaxed)) & kSerialMask;
}

template <class Object>
class HandleTable {
 public:
  size_t add(const std::shared_ptr<Object>& object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!vacant_.empty()) {
      const size_t index = vacant_.back();
      vacant_.pop_back();
      objects_[index] = object;
      return index;
    }
    if (objects_.size() == kMaxObjects)
      throw Error("more than " + std::to_string(kMaxObjects) + " paging nodes are loaded in this process");
    // So that remove() needs no memory.
    if (vacant_.capacity() <= objects_.size()) vacant_.reserve(2 * objects_.size() + 16);
    objects_.push_back(object);
    return objects_.size() - 1;
  }

  void remove(size_t index) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[index].reset();
    vacant_.push_back(index);
  }

  // The object that a handle names, or nullptr.
  std::shared_ptr<Object> find(int64_t handle) {
    const auto index = static_cast<uint64_t>(handle) >> kSerialBits;
    const std::lock_guard<std::mutex> lock(mutex_);
    return index < objects_.size() ? objects_[index].lock() : nullptr;
  }

  static int64_t make_handle(size_t index) {
    return static_cast<int64_t>(static_cast<uint64_t>(index) << kSerialBits) | next_serial();
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Object>> objects_;
  std::vector<size_t> vacant_;
};

}  // namespace poet
