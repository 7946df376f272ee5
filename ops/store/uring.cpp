// Requests by io_uring, by its system calls themselves: no library is needed.
// Source of the interface: the manual pages io_uring(7), io_uring_setup(2) and io_uring_enter(2).
#include "faults/faults.h"
#include "process/error.h"
#include "store/page_file.h"
#include "store/requests.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#endif

namespace poet {

#if __has_include(<linux/io_uring.h>) && defined(__NR_io_uring_setup)

namespace {

struct Descriptor {
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  int number = -1;
};

class Mapping {
 public:
  Mapping(size_t bytes, int descriptor, off_t offset)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, offset)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_there()) munmap(memory_, bytes_);
  }
  bool is_there() const { return memory_ != MAP_FAILED; }
  template <class Object>
  Object* at(uint32_t offset) const {
    return reinterpret_cast<Object*>(static_cast<unsigned char*>(memory_) + offset);
  }

 private:
  const size_t bytes_;
  void* const memory_;
};

// The two queues that are shared with the kernel.
class Ring final : public Requests {
 public:
  Ring() {
    io_uring_params parameters{};
    const int error = faults::status([&] {
      descriptor_.number = static_cast<int>(syscall(__NR_io_uring_setup, kMostRequests, &parameters));
      return descriptor_.number >= 0 ? 0 : errno;
    });
    if (error != 0) throw Error("io_uring is not possible here: " + error_text(error));
    submissions_ = std::make_unique<Mapping>(parameters.sq_off.array + parameters.sq_entries * sizeof(uint32_t),
                                             descriptor_.number, IORING_OFF_SQ_RING);
    completions_ = std::make_unique<Mapping>(parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe),
                                             descriptor_.number, IORING_OFF_CQ_RING);
    entries_ =
        std::make_unique<Mapping>(parameters.sq_entries * sizeof(io_uring_sqe), descriptor_.number, IORING_OFF_SQES);
    if (!submissions_->is_there() || !completions_->is_there() || !entries_->is_there())
      throw Error("io_uring is not possible here: its queues cannot be mapped");
    submission_tail_ = submissions_->at<uint32_t>(parameters.sq_off.tail);
    submission_mask_ = *submissions_->at<uint32_t>(parameters.sq_off.ring_mask);
    submission_array_ = submissions_->at<uint32_t>(parameters.sq_off.array);
    completion_head_ = completions_->at<uint32_t>(parameters.cq_off.head);
    completion_tail_ = completions_->at<uint32_t>(parameters.cq_off.tail);
    completion_mask_ = *completions_->at<uint32_t>(parameters.cq_off.ring_mask);
    completion_entries_ = completions_->at<io_uring_cqe>(parameters.cq_off.cqes);
  }

  void queue(const Request& request) noexcept override {
    const uint32_t tail = *submission_tail_;
    const uint32_t index = tail & submission_mask_;
    io_uring_sqe& entry = entries_->at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = request.is_write ? IORING_OP_WRITE : IORING_OP_READ;
    entry.fd = request.file;
    entry.addr = reinterpret_cast<uintptr_t>(request.data);
    entry.len = static_cast<uint32_t>(request.bytes);
    entry.off = request.offset;
    entry.user_data = request.number;
    submission_array_[index] = index;
    __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
    ++unsubmitted_;
  }

  void submit() noexcept override {
    if (unsubmitted_ != 0 && broken_ == 0) enter(false);
  }

  int next_completion(uint64_t* number, int64_t* result) noexcept override {
    while (broken_ == 0) {
      const uint32_t head = *completion_head_;
      const bool is_ready = head != __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE);
      if (unsubmitted_ != 0 || !is_ready) {
        enter(!is_ready);
        continue;
      }
      const io_uring_cqe& entry = completion_entries_[head & completion_mask_];
      *number = entry.user_data;
      *result = entry.res;
      __atomic_store_n(completion_head_, head + 1, __ATOMIC_RELEASE);
      return 0;
    }
    return broken_;
  }

 private:
  // Hands the kernel what was queued.
  void enter(bool waits) noexcept {
    const long taken = syscall(__NR_io_uring_enter, descriptor_.number, unsubmitted_, waits ? 1 : 0,
                               waits ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
    if (taken > 0) unsubmitted_ -= static_cast<unsigned>(taken);
    if (taken < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) broken_ = errno;
  }

  Descriptor descriptor_;
  int broken_ = 0;
  std::unique_ptr<Mapping> submissions_, completions_, entries_;
  uint32_t* submission_tail_ = nullptr;
  uint32_t submission_mask_ = 0;
  uint32_t* submission_array_ = nullptr;
  uint32_t* completion_head_ = nullptr;
  uint32_t* completion_tail_ = nullptr;
  uint32_t completion_mask_ = 0;
  io_uring_cqe* completion_entries_ = nullptr;
  unsigned unsubmitted_ = 0;
};

}  // namespace

std::unique_ptr<Requests> make_uring_requests() { return std::make_unique<Ring>(); }

#else

std::unique_ptr<Requests> make_uring_requests() {
  throw Error("io_uring is not possible here: the library was built without its header");
}

#endif

}  // namespace poet
