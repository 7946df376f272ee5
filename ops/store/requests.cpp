#include "store/requests.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "faults/faults.h"

namespace poet {

Requests::Requests() {
  const int error = faults::status(
      [&] { return syscall(__NR_io_setup, static_cast<long>(kMostRequests), &context_) == 0 ? 0 : errno; });
  is_possible_ = error == 0;
}

Requests::~Requests() {
  if (is_possible_) syscall(__NR_io_destroy, context_);
}

void Requests::queue(const Request& request) noexcept {
  // One that has no company is over sooner in a plain call.
  if (!is_possible_ || request.is_only) return carry_out(request);
  iocb& entry = entries_[queued_];
  std::memset(&entry, 0, sizeof entry);
  entry.aio_data = request.number;
  entry.aio_lio_opcode = request.is_write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
  entry.aio_fildes = static_cast<uint32_t>(request.file);
  entry.aio_buf = reinterpret_cast<uintptr_t>(request.data);
  entry.aio_nbytes = request.bytes;
  entry.aio_offset = static_cast<int64_t>(request.offset);
  pointers_[queued_] = &entry;
  ++queued_;
}

void Requests::submit() noexcept {
  unsigned begun = 0;
  while (begun < queued_) {
    const long taken = syscall(__NR_io_submit, context_, static_cast<long>(queued_ - begun), &pointers_[begun]);
    if (taken > 0) {
      begun += static_cast<unsigned>(taken);
    } else if (taken == 0 || errno != EINTR) {  // the first one is refused, with no say on the others
      ended_.add(entries_[begun].aio_data, taken == 0 ? -EIO : -errno);
      ++begun;
    }
  }
  queued_ = 0;
}

int Requests::next_completion(uint64_t* number, int64_t* result) noexcept {
  submit();
  if (ended_.take(number, result)) return 0;
  io_event event;
  for (;;) {
    const long ended = syscall(__NR_io_getevents, context_, 1L, 1L, &event, nullptr);
    if (ended == 1) break;
    if (ended == 0 || errno != EINTR) return ended == 0 ? EIO : errno;
  }
  *number = event.data;
  *result = event.res;
  return 0;
}

void Requests::carry_out(const Request& request) noexcept {
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t moved = request.is_write ? pwrite(request.file, request.data, request.bytes, offset)
                                         : pread(request.file, request.data, request.bytes, offset);
  ended_.add(request.number, moved < 0 ? -errno : moved);
}

}  // namespace poet
