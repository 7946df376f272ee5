// Direct I/O: a page goes in pieces, of which several are under way while the codec works on others.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "faults/faults.h"
#include "process/error.h"
#include "store/backend.h"
#include "store/requests.h"
#include "store/staging.h"

namespace poet {
namespace {

// Pieces that pass through staging memory, of which there is one for each request.
constexpr uint64_t kStagedPieceBytes = 256 << 10;
// Others: small enough that there are several, large enough to keep the storage busy.
constexpr uint64_t kLeastPieceBytes = 256 << 10;
constexpr uint64_t kMostPieceBytes = 1 << 20;
constexpr int kMostIdleRequests = 16;  // in a row that transfer less than a block

class Direct final : public Backend {
 public:
  Direct(PageFile& file, Codec& codec) : file_(file), codec_(codec), staging_(kMostRequests * kStagedPieceBytes) {
    if (const int error = file_.set_direct(true); error != 0)
      throw Error("direct I/O is not possible in " + file_.directory() + ": " + error_text(error));
  }
  ~Direct() override { static_cast<void>(file_.set_direct(false)); }

  BackendKind kind() const override { return BackendKind::kDirect; }
  uint64_t staging_bytes() const override { return staging_.bytes(); }
  IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept override {
    return move(true, static_cast<unsigned char*>(const_cast<void*>(data)), bytes, offset);
  }
  IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept override {
    return move(false, static_cast<unsigned char*>(data), bytes, offset);
  }

 private:
  struct Piece {
    uint64_t number = 0;
    uint64_t at = 0;          // in the tensor
    uint64_t length = 0;      // of the tensor
    uint64_t done_bytes = 0;  // of its whole blocks in the file
    int idle_requests = 0;
    bool is_done = false;
  };

  // What is moved at the moment.
  struct Page {
    bool is_write = false;
    unsigned char* data = nullptr;
    uint64_t bytes = 0;
    uint64_t offset = 0;
    bool is_staged = false;    // all of it; else only what lies behind the last whole block
    uint64_t piece_bytes = 0;  // of all pieces but those that end at split_at or at the end
    uint64_t split_at = 0;     // behind the last whole block, or where all is staged at the end
    uint64_t count = 0;        // of pieces
  };

  void begin_page(bool is_write, unsigned char* data, uint64_t bytes, uint64_t offset) noexcept {
    const uint64_t whole = bytes / kBlockBytes * kBlockBytes;
    const bool is_staged = !is_direct_memory(data, codec_) || whole == 0;
    const uint64_t share = whole_blocks((whole + kMostRequests - 1) / kMostRequests);
    const uint64_t piece = is_staged ? kStagedPieceBytes : std::clamp(share, kLeastPieceBytes, kMostPieceBytes);
    const uint64_t split_at = is_staged ? bytes : whole;
    const uint64_t count = (split_at + piece - 1) / piece + (split_at < bytes ? 1 : 0);
    page_ = {is_write, data, bytes, offset, is_staged, piece, split_at, count};
  }

  Piece piece_of(uint64_t number) const {
    const uint64_t at = std::min(number * page_.piece_bytes, page_.split_at);
    const uint64_t end = at < page_.split_at ? std::min(at + page_.piece_bytes, page_.split_at) : page_.bytes;
    return {number, at, end - at, 0, 0, false};
  }

  bool is_staged(const Piece& piece) const { return page_.is_staged || piece.at == page_.split_at; }

  // Where a piece is on the file's side.
  unsigned char* buffer_of(const Piece& piece) const {
    return is_staged(piece) ? staging_.data() + piece.number % kMostRequests * kStagedPieceBytes
                            : page_.data + piece.at;
  }

  void request(const Piece& piece) noexcept {
    requests_.queue({page_.is_write, file_.descriptor(), buffer_of(piece) + piece.done_bytes,
                     whole_blocks(piece.length) - piece.done_bytes, page_.offset + piece.at + piece.done_bytes,
                     piece.number, page_.count == 1});
  }

  IoResult move(bool is_write, unsigned char* data, uint64_t bytes, uint64_t offset) noexcept {
    begin_page(is_write, data, bytes, offset);
    IoResult result;
    uint64_t begun = 0, ended = 0;  // pieces; what is between them is under way or waits for its turn in the codec
    unsigned under_way = 0;
    while (ended < page_.count) {
      for (; begun < page_.count && begun < ended + kMostRequests && result.error == 0; ++begun) {
        Piece& piece = pieces_[begun % kMostRequests];
        piece = piece_of(begun);
        if (!begin(piece)) {
          result.error = IoResult::kCipherFailed;
          break;
        }
        ++under_way;
      }
      if (under_way == 0) break;
      if (const int error = await_one(&under_way, &result); error != 0) {
        result.error = error;
        break;
      }
      // In order: the codec takes a page from its first byte to its last.
      for (; ended < begun && pieces_[ended % kMostRequests].is_done; ++ended)
        if (result.error == 0) end(pieces_[ended % kMostRequests], &result);
    }
    return result;
  }

  // Starts a piece. What is written from its own place passes through the codec while it is under way.
  bool begin(const Piece& piece) noexcept {
    unsigned char* const buffer = buffer_of(piece);
    if (page_.is_write && is_staged(piece)) {
      if (!codec_.move(page_.data + piece.at, buffer, piece.length)) return false;
      std::memset(buffer + piece.length, 0, whole_blocks(piece.length) - piece.length);
    }
    request(piece);
    requests_.submit();
    return !page_.is_write || is_staged(piece) || codec_.move(buffer, buffer, piece.length);
  }

  void end(const Piece& piece, IoResult* result) noexcept {
    if (!page_.is_write && !codec_.move(buffer_of(piece), page_.data + piece.at, piece.length))
      result->error = IoResult::kCipherFailed;
    else
      result->done_bytes += piece.length;
  }

  // Waits for a request and takes its result in; asks again where it transferred a part.
  int await_one(unsigned* under_way, IoResult* result) noexcept {
    uint64_t number = 0;
    int64_t moved = 0;
    if (const int error = requests_.next_completion(&number, &moved); error != 0) return error;
    Piece& piece = pieces_[number % kMostRequests];
    --*under_way;
    const uint64_t wanted = whole_blocks(piece.length);
    const ssize_t counted = faults::transfer(wanted - piece.done_bytes, [&](size_t most) -> ssize_t {
      errno = moved < 0 ? static_cast<int>(-moved) : 0;
      return moved < 0 ? -1 : std::min<ssize_t>(moved, static_cast<ssize_t>(most));
    });
    const int error = counted < 0 ? errno : counted == 0 ? IoResult::kEndOfFile : 0;
    const uint64_t done = error == 0 ? static_cast<uint64_t>(counted) / kBlockBytes * kBlockBytes : 0;
    piece.done_bytes += done;
    piece.idle_requests = done != 0 ? 0 : piece.idle_requests + 1;
    if (error != 0 && error != EINTR && error != EAGAIN && result->error == 0) result->error = error;
    if (piece.idle_requests == kMostIdleRequests && result->error == 0) result->error = error == 0 ? EIO : error;
    piece.is_done = piece.done_bytes >= wanted || result->error != 0;
    if (!piece.is_done) {
      request(piece);
      ++*under_way;
    }
    return 0;
  }

  PageFile& file_;
  Codec& codec_;
  Requests requests_;
  const Staging staging_;
  Page page_;
  std::array<Piece, kMostRequests> pieces_{};
};

}  // namespace

std::unique_ptr<Backend> make_direct_backend(PageFile& file, Codec& codec) {
  return std::make_unique<Direct>(file, codec);
}

}  // namespace poet
