#include "backend.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "staging.h"

namespace poet {
namespace {

// Small enough that a piece is still in the processor's cache when the kernel copies what the codec has just seen.
constexpr uint64_t kCachedPieceBytes = 256 << 10;
constexpr uint64_t kDirectPieceBytes = 1 << 20;

// Moves a page piece by piece. `move_piece(at, length)` returns how its I/O ended.
template <class MovePiece>
IoResult in_pieces(uint64_t bytes, uint64_t piece_bytes, MovePiece&& move_piece) noexcept {
  IoResult result;
  while (result.done_bytes < bytes && result.error == 0) {
    const uint64_t length = std::min(piece_bytes, bytes - result.done_bytes);
    const IoResult piece = move_piece(result.done_bytes, length);
    result.error = piece.error;
    result.done_bytes += std::min(piece.done_bytes, length);
  }
  return result;
}

class Cached final : public Backend {
 public:
  Cached(PageFile& file, Codec& codec, bool drops)
      : file_(file), codec_(codec), drops_(drops), staging_(codec.changes_bytes() ? kCachedPieceBytes : 0) {}

  BackendKind kind() const override { return drops_ ? BackendKind::kUncached : BackendKind::kCached; }
  uint64_t staging_bytes() const override { return staging_.bytes(); }

  IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept override {
    const IoResult result = in_pieces(bytes, kCachedPieceBytes, [&](uint64_t at, uint64_t length) {
      auto* const from = static_cast<unsigned char*>(const_cast<void*>(data)) + at;
      unsigned char* const side = codec_.changes_bytes() ? staging_.data() : from;
      if (!codec_.move(from, side, length)) return IoResult{IoResult::kCipherFailed, 0};
      return file_.write(side, length, offset + at);
    });
    if (drops_) file_.drop_cache(offset, bytes);
    return result;
  }

  IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept override {
    const IoResult result = in_pieces(bytes, kCachedPieceBytes, [&](uint64_t at, uint64_t length) {
      auto* const to = static_cast<unsigned char*>(data) + at;
      unsigned char* const side = codec_.changes_bytes() ? staging_.data() : to;
      const IoResult piece = file_.read(side, length, offset + at);
      if (piece.error == 0 && !codec_.move(side, to, length)) return IoResult{IoResult::kCipherFailed, 0};
      return piece;
    });
    if (drops_) file_.drop_cache(offset, bytes);
    return result;
  }

 private:
  PageFile& file_;
  Codec& codec_;
  const bool drops_;
  const Staging staging_;
};

class Direct final : public Backend {
 public:
  Direct(PageFile& file, Codec& codec) : file_(file), codec_(codec), staging_(kDirectPieceBytes) {
    if (const int error = file_.set_direct(true); error != 0)
      throw Error("direct I/O is not possible in " + file_.directory() + ": " + error_text(error));
  }
  ~Direct() override { static_cast<void>(file_.set_direct(false)); }

  BackendKind kind() const override { return BackendKind::kDirect; }
  uint64_t staging_bytes() const override { return staging_.bytes(); }

  IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept override {
    auto* const memory = static_cast<unsigned char*>(const_cast<void*>(data));
    return in_pieces(bytes, piece_bytes(data, bytes), [&](uint64_t at, uint64_t length) {
      unsigned char* const side = side_of(memory, at, length);
      if (!codec_.move(memory + at, side, length)) return IoResult{IoResult::kCipherFailed, 0};
      if (side == staging_.data()) std::memset(side + length, 0, whole_blocks(length) - length);
      return file_.write(side, whole_blocks(length), offset + at);
    });
  }

  IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept override {
    auto* const memory = static_cast<unsigned char*>(data);
    return in_pieces(bytes, piece_bytes(data, bytes), [&](uint64_t at, uint64_t length) {
      unsigned char* const side = side_of(memory, at, length);
      const IoResult piece = file_.read(side, whole_blocks(length), offset + at);
      if (piece.error == 0 && !codec_.move(side, memory + at, length)) return IoResult{IoResult::kCipherFailed, 0};
      return piece;
    });
  }

 private:
  // Memory that direct I/O reaches goes in one piece up to its last whole block.
  uint64_t piece_bytes(const void* data, uint64_t bytes) const {
    return is_direct_memory(data, codec_) && bytes >= kBlockBytes ? bytes / kBlockBytes * kBlockBytes
                                                                  : kDirectPieceBytes;
  }
  // Where a piece is on the file's side: itself or the staging memory.
  unsigned char* side_of(unsigned char* memory, uint64_t at, uint64_t length) const {
    return is_direct_memory(memory, codec_) && length % kBlockBytes == 0 ? memory + at : staging_.data();
  }

  PageFile& file_;
  Codec& codec_;
  const Staging staging_;
};

}  // namespace

const char* name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCached:
      return "cached";
    case BackendKind::kUncached:
      return "uncached";
    case BackendKind::kDirect:
      return "direct";
    case BackendKind::kUring:
      return "io_uring";
    default:
      return "auto";
  }
}

std::unique_ptr<Backend> make_backend(BackendKind kind, PageFile& file, Codec& codec) {
  switch (kind) {
    case BackendKind::kDirect:
      return std::make_unique<Direct>(file, codec);
    case BackendKind::kUring:
      return make_uring_backend(file, codec);
    default:
      return std::make_unique<Cached>(file, codec, kind == BackendKind::kUncached);
  }
}

}  // namespace poet
