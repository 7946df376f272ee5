// Ways to move a page between memory and the page file. One thread at a time uses a back end.
#pragma once

#include <cstdint>
#include <memory>

#include "store/codec.h"
#include "store/page_file.h"

namespace poet {

enum class BackendKind {
  kAuto,      // what suits the size of the file and the storage: page_device.cpp
  kCached,    // pread and pwrite through the page cache
  kUncached,  // the same, and the page cache writes out and forgets each page before its transfer ends
  kDirect,    // O_DIRECT, with several requests under way
};
const char* name_of(BackendKind kind);

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual BackendKind kind() const = 0;
  virtual uint64_t staging_bytes() const = 0;  // memory that it holds as long as it lives
  // Moves a page; the codec has begun it and is ended by the caller. They neither throw nor allocate.
  virtual IoResult write(const void* data, uint64_t bytes, uint64_t offset) noexcept = 0;
  virtual IoResult read(void* data, uint64_t bytes, uint64_t offset) noexcept = 0;
};

// True where direct I/O can transfer the memory itself, up to its last whole block; else pages pass through staging.
inline bool is_direct_memory(const void* data, const Codec& codec) {
  return !codec.changes_bytes() && reinterpret_cast<uintptr_t>(data) % kBlockBytes == 0;
}

// Throws Error where the file or the system cannot do it. The back end refers to file and codec.
std::unique_ptr<Backend> make_backend(BackendKind kind, PageFile& file, Codec& codec);
std::unique_ptr<Backend> make_direct_backend(PageFile& file, Codec& codec);

}  // namespace poet
