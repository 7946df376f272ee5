// The page file with everything that a transfer passes through on its way. One thread at a time moves pages
// (io_queue.h).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "store/backend.h"
#include "store/codec.h"
#include "store/page_file.h"
#include "store/statistics.h"
#include "store/store_options.h"

namespace poet {

struct Transfer;

// What a device is doing, for people.
struct DeviceReport {
  BackendKind backend = BackendKind::kCached;
  std::string reason;  // why it is this back end, where it is not simply the one asked for
  uint64_t staging_bytes = 0;
};

class PageDevice {
 public:
  explicit PageDevice(const StoreOptions& options);  // throws Error

  // Reserves room in the file, which may come to `file_bytes`; the first that does so settles the back end. Throws
  // Error.
  void reserve(uint64_t offset, uint64_t bytes, uint64_t file_bytes);
  // Gives the room back; false where the file system cannot take it.
  bool give_back(uint64_t offset, uint64_t bytes) noexcept { return file_.give_back(offset, bytes); }
  uint64_t next_generation() { return generation_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Moves the bytes of a transfer and sets its result; returns when an unlimited or throttled storage would have.
  void carry_out(Transfer& transfer) noexcept;
  void add_wait(uint64_t nanoseconds);  // a node waited for a transfer

  const PageFile& file() const { return file_; }
  const StoreOptions& options() const { return options_; }
  const Statistics& statistics() const { return statistics_; }
  DeviceReport report();

 private:
  void settle_backend(uint64_t file_bytes);
  bool try_direct();
  void use(BackendKind kind);
  IoResult move(Transfer& transfer) noexcept;
  void hold_back(const Transfer& transfer, Clock::time_point start);

  const StoreOptions options_;
  PageFile file_;
  Codec codec_;
  std::mutex mutex_;  // guards the back end until it is settled, and the reason
  std::unique_ptr<Backend> backend_;
  bool is_settled_ = false;
  std::string reason_;
  std::atomic<uint64_t> generation_{0};
  Statistics statistics_;
  Clock::time_point idle_since_{};  // when the throttled storage ends its last transfer
};

}  // namespace poet
