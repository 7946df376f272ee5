#include "store/page_device.h"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "process/error.h"
#include "process/memory_left.h"
#include "runtime/allocation_tracker.h"
#include "store/io_queue.h"
#include "store/staging.h"

namespace poet {
namespace {

// Of the available memory, a page file may fill this share of the page cache without pushing out much else.
constexpr uint64_t kCacheShare = 8;

// Sleeps as exactly as the system can: a thread's sleeps may otherwise last 50 us longer (prctl(2)).
void sleep_until(Clock::time_point end) {
  const int slack = prctl(PR_GET_TIMERSLACK);
  const bool is_set = slack > 0 && prctl(PR_SET_TIMERSLACK, 1UL) == 0;
  std::this_thread::sleep_until(end);
  if (is_set) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack));
}

std::string in_mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

PageDevice::PageDevice(const StoreOptions& options)
    : options_(options), file_(options.directory, options.allows_ram), codec_(options.has_checksum, options.cipher) {}

void PageDevice::reserve(uint64_t offset, uint64_t bytes, uint64_t file_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_settled_) settle_backend(std::max(bytes, file_bytes));
    is_settled_ = true;
  }
  file_.reserve(offset, bytes);
}

void PageDevice::use(BackendKind kind) {
  backend_.reset();  // before the next one sets the file's flags
  backend_ = make_backend(kind, file_, codec_);
  if (kind == BackendKind::kDirect && !codec_.changes_bytes()) allocations::align_large_blocks();
}

// Uses the back end that was asked for, or else one that keeps the page cache free of a large file.
void PageDevice::settle_backend(uint64_t file_bytes) {
  if (options_.backend != BackendKind::kAuto) return use(options_.backend);
  const uint64_t available = cache_room_bytes();
  reason_ = in_mib(file_bytes) + " of pages, " + in_mib(available) + " of memory available";
  if (file_bytes <= available / kCacheShare) return use(BackendKind::kCached);
  if (!try_direct()) use(BackendKind::kUncached);
}

// Uses direct I/O; false where the file system cannot do it, which some say only when they are asked for a transfer.
// Nothing is in the file yet. What is tried in it has gone again afterwards.
bool PageDevice::try_direct() {
  const Staging probe(kBlockBytes);
  file_.reserve(0, kBlockBytes);
  std::fill_n(probe.data(), kBlockBytes, static_cast<unsigned char>(0xa5));
  bool is_possible = true;
  try {
    use(BackendKind::kDirect);
    for (const bool is_write : {true, false}) {
      codec_.begin(is_write, 0, Seal{next_generation(), 0, {}});
      const IoResult moved =
          is_write ? backend_->write(probe.data(), kBlockBytes, 0) : backend_->read(probe.data(), kBlockBytes, 0);
      codec_.abandon();
      is_possible = is_possible && moved.error == 0;
    }
  } catch (const Error&) {
    is_possible = false;
  }
  file_.give_back(0, kBlockBytes);
  return is_possible;
}

DeviceReport PageDevice::report() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (backend_ == nullptr) return {options_.backend, "nothing was reserved yet", 0};
  return {backend_->kind(), reason_, backend_->staging_bytes()};
}

void PageDevice::carry_out(Transfer& transfer) noexcept {
  const Clock::time_point start = Clock::now();
  transfer.result = move(transfer);
  if (options_.throttle.is_on()) hold_back(transfer, start);
  const uint64_t taken = nanoseconds_since(start);
  statistics_.add_transfer(transfer.is_write, transfer.result.done_bytes, taken);
  total_statistics().add_transfer(transfer.is_write, transfer.result.done_bytes, taken);
}

IoResult PageDevice::move(Transfer& transfer) noexcept {
  if (!codec_.begin(transfer.is_write, transfer.slot, transfer.seal)) {
    codec_.abandon();
    return {IoResult::kCipherFailed, 0};
  }
  IoResult result = transfer.is_write ? backend_->write(transfer.data, transfer.bytes, transfer.offset)
                                      : backend_->read(transfer.data, transfer.bytes, transfer.offset);
  if (result.error != 0)
    codec_.abandon();
  else if (transfer.is_write && !codec_.end_encoding(&transfer.seal))
    result.error = IoResult::kCipherFailed;
  else if (!transfer.is_write && !codec_.end_decoding(transfer.seal))
    result.error = IoResult::kAltered;
  return result;
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
  sleep_until(idle_since_);
}

}  // namespace poet
