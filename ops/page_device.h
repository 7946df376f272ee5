// What a transfer passes through between memory and the page file. One thread at a time uses a device (io_queue.h).
#pragma once

#include <string>

#include "page_file.h"
#include "statistics.h"
#include "store_options.h"

namespace poet {

struct Transfer;

class PageDevice {
 public:
  explicit PageDevice(const StoreOptions& options, const FileCalls& calls = system_calls());

  // Moves the bytes of a transfer and sets its result; returns when an unlimited or throttled storage would have.
  void carry_out(Transfer& transfer);
  void add_wait(uint64_t nanoseconds);  // a node waited for a transfer

  PageFile& file() { return file_; }
  const PageFile& file() const { return file_; }
  const StoreOptions& options() const { return options_; }
  const Statistics& statistics() const { return statistics_; }

 private:
  void hold_back(const Transfer& transfer, Clock::time_point start);

  const StoreOptions options_;
  PageFile file_;
  Statistics statistics_;
  Clock::time_point idle_since_{};  // when the throttled storage ends its last transfer
};

}  // namespace poet
