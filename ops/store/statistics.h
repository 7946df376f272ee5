// What a page store has moved so far, and how long that took.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace poet {

using Clock = std::chrono::steady_clock;

inline uint64_t nanoseconds_since(Clock::time_point start) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

// The layout that poet_onnx/runtime/statistics.py reads.
struct StatisticsValues {
  uint64_t page_outs = 0;  // transfers that ended, well or not
  uint64_t page_ins = 0;
  uint64_t page_out_bytes = 0;  // of tensors, not of the blocks of the file that hold them
  uint64_t page_in_bytes = 0;
  uint64_t page_out_nanoseconds = 0;  // from the start of each transfer on the I/O channel to its end
  uint64_t page_in_nanoseconds = 0;
  uint64_t waited_nanoseconds = 0;  // that nodes spent waiting for transfers
};

class Statistics {
 public:
  void add_transfer(bool is_write, uint64_t bytes, uint64_t nanoseconds) {
    add(is_write ? page_outs_ : page_ins_, 1);
    add(is_write ? page_out_bytes_ : page_in_bytes_, bytes);
    add(is_write ? page_out_nanoseconds_ : page_in_nanoseconds_, nanoseconds);
  }
  void add_wait(uint64_t nanoseconds) { add(waited_nanoseconds_, nanoseconds); }

  StatisticsValues values() const {
    return {page_outs_.load(kRelaxed),
            page_ins_.load(kRelaxed),
            page_out_bytes_.load(kRelaxed),
            page_in_bytes_.load(kRelaxed),
            page_out_nanoseconds_.load(kRelaxed),
            page_in_nanoseconds_.load(kRelaxed),
            waited_nanoseconds_.load(kRelaxed)};
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  static void add(std::atomic<uint64_t>& counter, uint64_t amount) { counter.fetch_add(amount, kRelaxed); }

  std::atomic<uint64_t> page_outs_{0}, page_ins_{0};
  std::atomic<uint64_t> page_out_bytes_{0}, page_in_bytes_{0};
  std::atomic<uint64_t> page_out_nanoseconds_{0}, page_in_nanoseconds_{0};
  std::atomic<uint64_t> waited_nanoseconds_{0};
};

// Of all stores that this process ever had.
inline Statistics& total_statistics() {
  static auto* const instance = new Statistics;
  return *instance;
}

}  // namespace poet
