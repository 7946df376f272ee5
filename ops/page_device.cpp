#include "page_device.h"

#include <thread>

#include "io_queue.h"

namespace poet {

PageDevice::PageDevice(const StoreOptions& options, const FileCalls& calls)
    : options_(options), file_(options.directory, calls) {}

void PageDevice::carry_out(Transfer& transfer) {
  const Clock::time_point start = Clock::now();
  transfer.result = transfer.is_write ? file_.write(transfer.data, transfer.bytes, transfer.offset)
                                      : file_.read(transfer.data, transfer.bytes, transfer.offset);
  if (options_.throttle.is_on()) hold_back(transfer, start);
  const uint64_t taken = nanoseconds_since(start);
  statistics_.add_transfer(transfer.is_write, transfer.result.done_bytes, taken);
  total_statistics().add_transfer(transfer.is_write, transfer.result.done_bytes, taken);
}

void PageDevice::add_wait(uint64_t nanoseconds) {
  statistics_.add_wait(nanoseconds);
  total_statistics().add_wait(nanoseconds);
}

// Sleeps until the throttled storage would have ended the transfer. It works through its transfers without a pause
// where they queue, so that what one sleep overshoots does not delay the next.
void PageDevice::hold_back(const Transfer& transfer, Clock::time_point start) {
  const Throttle& throttle = options_.throttle;
  const uint64_t rate = transfer.is_write ? throttle.page_out_bytes_per_second : throttle.page_in_bytes_per_second;
  const uint64_t latency =
      transfer.is_write ? throttle.page_out_latency_nanoseconds : throttle.page_in_latency_nanoseconds;
  const double seconds = rate == 0 ? 0.0 : static_cast<double>(transfer.bytes) / static_cast<double>(rate);
  const auto lasts = std::chrono::nanoseconds(latency) +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  idle_since_ = (transfer.submitted_at < idle_since_ ? idle_since_ : start) + lasts;
  std::this_thread::sleep_until(idle_since_);
}

}  // namespace poet
