// Direct I/O with several requests under way, by io_uring's system calls themselves: no library is needed.
// Source of the interface: the manual pages io_uring(7), io_uring_setup(2) and io_uring_enter(2).
#include "backend.h"
#include "error.h"
#include "faults.h"
#include "staging.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#endif

namespace poet {

#if __has_include(<linux/io_uring.h>) && defined(__NR_io_uring_setup)

namespace {

constexpr unsigned kDepth = 4;  // requests under way
constexpr uint64_t kPieceBytes = 256 << 10;

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
class Ring {
 public:
  Ring() {
    io_uring_params parameters{};
    const int error = faults::status([&] {
      descriptor_.number = static_cast<int>(syscall(__NR_io_uring_setup, kDepth, &parameters));
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
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void queue(bool is_write, int file, void* data, uint32_t bytes, uint64_t offset, uint64_t number) noexcept {
    const uint32_t tail = *submission_tail_;
    const uint32_t index = tail & submission_mask_;
    io_uring_sqe& entry = entries_->at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = is_write ? IORING_OP_WRITE : IORING_OP_READ;
    entry.fd = file;
    entry.addr = reinterpret_cast<uintptr_t>(data);
    entry.len = bytes;
    entry.off = offset;
    entry.user_data = number;
    submission_array_[index] = index;
    __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
    ++unsubmitted_;
  }

  // Hands the kernel what was queued and waits for a request to end. Returns 0, or the errno value of a ring that does
  // not work any more.
  int next_completion(uint64_t* number, int* result) noexcept {
    while (broken_ == 0) {
      const uint32_t head = *completion_head_;
      const bool is_ready = head != __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE);
      if (unsubmitted_ != 0 || !is_ready) {
        const long taken = syscall(__NR_io_uring_enter, descriptor_.number, unsubmitted_, is_ready ? 0 : 1,
                                   is_ready ? 0 : IORING_ENTER_GETEVENTS, nullptr, 0);
        if (taken < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) return broken_ = errno;
        if (taken > 0) unsubmitted_ -= static_cast<unsigned>(taken);
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

class Uring final : public Backend {
 public:
  Uring(PageFile& file, Codec& codec) : file_(file), codec_(codec), staging_(kDepth * kPieceBytes) {
    if (const int error = file_.set_direct(true); error != 0)
      throw Error("direct I/O is not possible in " + file_.directory() + ": " + error_text(error));
  }
  ~Uring() override { static_cast<void>(file_.set_direct(false)); }

  BackendKind kind() const override { return BackendKind::kUring; }
  uint64_t staging_bytes() const override { return staging_.bytes(); }
  IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept override {
    return move(true, static_cast<unsigned char*>(const_cast<void*>(data)), bytes, offset);
  }
  IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept override {
    return move(false, static_cast<unsigned char*>(data), bytes, offset);
  }

 private:
  // A piece of the page, in the staging buffer of its number modulo kDepth.
  struct Piece {
    uint64_t number = 0;
    uint64_t length = 0;      // of the tensor
    uint64_t done_bytes = 0;  // of its whole blocks in the file
    bool is_done = false;
  };

  // Where a piece is on the file's side: itself where direct I/O reaches it, or staging memory.
  unsigned char* buffer_of(const Piece& piece) const {
    return is_direct_memory(data_, codec_) && piece.length % kBlockBytes == 0
               ? data_ + piece.number * kPieceBytes
               : staging_.data() + piece.number % kDepth * kPieceBytes;
  }

  void request(bool is_write, Piece& piece, uint64_t offset) noexcept {
    ring_.queue(is_write, file_.descriptor(), buffer_of(piece) + piece.done_bytes,
                static_cast<uint32_t>(whole_blocks(piece.length) - piece.done_bytes),
                offset + piece.number * kPieceBytes + piece.done_bytes, piece.number);
  }

  IoResult move(bool is_write, unsigned char* data, uint64_t bytes, uint64_t offset) noexcept {
    data_ = data;
    const uint64_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
    IoResult result;
    uint64_t begun = 0, ended = 0;  // pieces; what is between them is under way or waits for its turn in the codec
    unsigned under_way = 0;
    while (ended < count) {
      for (; begun < count && begun < ended + kDepth && result.error == 0; ++begun) {
        Piece& piece = pieces_[begun % kDepth];
        piece = Piece{begun, std::min(kPieceBytes, bytes - begun * kPieceBytes), 0, false};
        if (is_write && !fill(piece, data + begun * kPieceBytes)) {
          result.error = IoResult::kCipherFailed;
          break;
        }
        request(is_write, piece, offset);
        ++under_way;
      }
      if (under_way == 0) break;
      const int error = await_one(is_write, offset, &under_way, &result);
      if (error != 0) {
        result.error = error;
        break;
      }
      // In order: the codec takes a page from its first byte to its last.
      for (; ended < begun && pieces_[ended % kDepth].is_done; ++ended) {
        const Piece& piece = pieces_[ended % kDepth];
        if (result.error != 0) continue;
        if (!is_write && !codec_.move(buffer_of(piece), data + ended * kPieceBytes, piece.length))
          result.error = IoResult::kCipherFailed;
        else
          result.done_bytes += piece.length;
      }
    }
    return result;
  }

  bool fill(const Piece& piece, const unsigned char* from) noexcept {
    unsigned char* const buffer = buffer_of(piece);
    if (!codec_.move(from, buffer, piece.length)) return false;
    const uint64_t padding = whole_blocks(piece.length) - piece.length;  // none where the buffer is the tensor
    if (padding != 0) std::memset(buffer + piece.length, 0, padding);
    return true;
  }

  // Waits for a request and takes its result in; asks again where it transferred a part.
  int await_one(bool is_write, uint64_t offset, unsigned* under_way, IoResult* result) noexcept {
    uint64_t number = 0;
    int moved = 0;
    if (const int error = ring_.next_completion(&number, &moved); error != 0) return error;
    Piece& piece = pieces_[number % kDepth];
    --*under_way;
    const uint64_t wanted = whole_blocks(piece.length);
    const ssize_t counted = faults::transfer(wanted - piece.done_bytes, [&](size_t most) -> ssize_t {
      errno = moved < 0 ? -moved : 0;
      return moved < 0 ? -1 : std::min<ssize_t>(moved, static_cast<ssize_t>(most));
    });
    const int error = counted < 0 ? errno : 0;
    if (error == 0) piece.done_bytes += static_cast<uint64_t>(counted) / kBlockBytes * kBlockBytes;
    if (error == 0 && counted == 0 && result->error == 0) result->error = IoResult::kEndOfFile;
    if (error != 0 && error != EINTR && error != EAGAIN && result->error == 0) result->error = error;
    piece.is_done = piece.done_bytes >= wanted || result->error != 0;
    if (!piece.is_done) {
      request(is_write, piece, offset);
      ++*under_way;
    }
    return 0;
  }

  PageFile& file_;
  Codec& codec_;
  Ring ring_;
  const Staging staging_;
  unsigned char* data_ = nullptr;  // of the page under way
  std::array<Piece, kDepth> pieces_{};
};

}  // namespace

std::unique_ptr<Backend> make_uring_backend(PageFile& file, Codec& codec) {
  return std::make_unique<Uring>(file, codec);
}

#else

std::unique_ptr<Backend> make_uring_backend(PageFile&, Codec&) {
  throw Error("io_uring is not possible here: the library was built without its header");
}

#endif

}  // namespace poet
