// The order in which a step reads pages. It is what the step before it did, as far as that can be told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace poet {

class ReadOrder {
 public:
  // What was read since the last call is expected again.
  void begin_step() {
    expected_.swap(seen_);
    seen_.clear();
    at_ = ahead_ = 0;
  }

  // A page is read. One that is not expected soon leaves the order as it is.
  void note(uint64_t page) {
    if (seen_.size() < kMostPages) seen_.push_back(static_cast<uint32_t>(page));
    const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min<uint64_t>(kNear, expected_.size() - at_));
    if (const auto found = std::find(begin, end, static_cast<uint32_t>(page)); found != end)
      at_ = static_cast<uint64_t>(found - expected_.begin()) + 1;
    ahead_ = std::max(ahead_, at_);
  }

  // How many of the expected pages were read, or passed by.
  uint64_t place() const { return at_; }
  // The next one that nobody was told of yet.
  bool has_next() const { return ahead_ < expected_.size(); }
  uint64_t next_place() const { return ahead_; }
  uint64_t next() { return expected_[ahead_++]; }

 private:
  static constexpr uint64_t kNear = 64;
  static constexpr size_t kMostPages = 1 << 20;  // beyond which pages are read when they are wanted

  std::vector<uint32_t> expected_, seen_;
  uint64_t at_ = 0, ahead_ = 0;
};

}  // namespace poet
