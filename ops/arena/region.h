// One mapping of memory, reserved and touched when it is made. Arenas may share it, one of them at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace poet {

class Region {
 public:
  explicit Region(uint64_t bytes);  // throws Error where the system does not have them
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  unsigned char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  bool contains(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address), begin = reinterpret_cast<uintptr_t>(data_);
    return at >= begin && at - begin < bytes_;
  }
  // Takes the region for an arena; false where another one has it.
  bool hold(const void* arena) noexcept;
  bool is_held_by_other(const void* arena) const noexcept;
  void give_back() noexcept { holder_.store(nullptr, std::memory_order_release); }
  // What is not handed out may not be touched; AddressSanitizer sees to it where it is built in.
  void hand_out(uint64_t offset, uint64_t bytes) const noexcept;
  void take_back(uint64_t offset, uint64_t bytes) const noexcept;

 private:
  unsigned char* data_ = nullptr;
  uint64_t bytes_;
  std::atomic<const void*> holder_{nullptr};
};

}  // namespace poet
