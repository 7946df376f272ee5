#include "store/backend.h"

#include <algorithm>

#include "store/staging.h"

namespace poet {
namespace {

// Small enough that a piece is still in the processor's cache when the kernel copies what the codec has just seen.
constexpr uint64_t kCachedPieceBytes = 256 << 10;

// Moves a page piece by piece. `move_piece(at, length)` returns how its I/O ended.
template <class MovePiece>
IoResult in_pieces(uint64_t bytes, MovePiece&& move_piece) noexcept {
  IoResult result;
  while (result.done_bytes < bytes && result.error == 0) {
    const uint64_t length = std::min(kCachedPieceBytes, bytes - result.done_bytes);
    const IoResult piece = move_piece(result.done_bytes, length);
    result.error = piece.error;
    result.done_bytes += std::min(piece.done_bytes, length);
  }
  return result;
}

class Cached final : public Backend {
 public:
  Cached(PageFile& file, Codec& codec, bool drops)
      : file_(file), codec_(codec), drops_(drops), staging_(codec.changes_bytes() ? kCachedPieceBytes : 0) {
    // What is read ahead lies in other slots. Nobody would drop it, nor a block of the cache that reaches into two.
    if (drops_) file_.set_readahead(false);
  }
  ~Cached() override {
    if (drops_) file_.set_readahead(true);
  }

  BackendKind kind() const override { return drops_ ? BackendKind::kUncached : BackendKind::kCached; }
  uint64_t staging_bytes() const override { return staging_.bytes(); }

  IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept override {
    const IoResult result = in_pieces(bytes, [&](uint64_t at, uint64_t length) {
      auto* const from = static_cast<unsigned char*>(const_cast<void*>(data)) + at;
      unsigned char* const side = codec_.changes_bytes() ? staging_.data() : from;
      if (!codec_.move(from, side, length)) return IoResult{IoResult::kCipherFailed, 0};
      return file_.write(side, length, offset + at);
    });
    if (drops_) {
      file_.write_back(offset, bytes);
      drop_former(offset, bytes);
    }
    return result;
  }

  IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept override {
    if (drops_) {
      file_.prefetch(offset, bytes);
      drop_former(offset, bytes);
    }
    return in_pieces(bytes, [&](uint64_t at, uint64_t length) {
      auto* const to = static_cast<unsigned char*>(data) + at;
      unsigned char* const side = codec_.changes_bytes() ? staging_.data() : to;
      const IoResult piece = file_.read(side, length, offset + at);
      if (piece.error == 0 && !codec_.move(side, to, length)) return IoResult{IoResult::kCipherFailed, 0};
      return piece;
    });
  }

 private:
  // Drops the page before this one from the page cache while the storage is busy with this one, whose turn is next.
  void drop_former(uint64_t offset, uint64_t bytes) noexcept {
    if (cached_bytes_ != 0 && cached_offset_ != offset) {
      file_.await_written(cached_offset_, cached_bytes_);
      file_.drop_cache(cached_offset_, cached_bytes_);
    }
    cached_offset_ = offset;
    cached_bytes_ = bytes;
  }

  PageFile& file_;
  Codec& codec_;
  const bool drops_;
  const Staging staging_;
  uint64_t cached_offset_ = 0;
  uint64_t cached_bytes_ = 0;  // that are still in the page cache
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
    default:
      return "auto";
  }
}

std::unique_ptr<Backend> make_backend(BackendKind kind, PageFile& file, Codec& codec) {
  if (kind == BackendKind::kDirect) return make_direct_backend(file, codec);
  return std::make_unique<Cached>(file, codec, kind == BackendKind::kUncached);
}

}  // namespace poet
