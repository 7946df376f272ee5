// A file that pages live in: that of a session is unnamed, private to the process and gone with it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>

namespace poet {

// Blocks of direct I/O: offsets, lengths and memory are multiples of it.
constexpr uint64_t kBlockBytes = 4096;

inline uint64_t whole_blocks(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

// How a transfer ended.
struct IoResult {
  static constexpr int kEndOfFile = -1;
  static constexpr int kAltered = -2;  // the bytes that were read are not those that were written
  static constexpr int kCipherFailed = -3;
  int error = 0;  // 0, an errno value or one of these
  uint64_t done_bytes = 0;
};

// Memory in parts, which one transfer fills or empties one after the other.
struct MemoryParts {
  static constexpr int kMost = 8;
  iovec parts[kMost] = {};
  int count = 0;

  void add(const void* data, uint64_t bytes) { parts[count++] = {const_cast<void*>(data), bytes}; }
  uint64_t bytes() const;
  // At most so many bytes of what lies behind the first ones.
  MemoryParts behind(uint64_t done_bytes, uint64_t most_bytes) const;
};

std::string error_text(int error);  // "No space left on device (errno 28)"

// Reads and writes may be made from several threads at once. A child of fork() has the same open file as its parent: in
// it, nothing changes how the file is read and written.
class PageFile {
 public:
  // Opens a new unnamed file in `directory`, mode 0600. Throws Error where that fails, or where the file is in RAM and
  // that is not allowed.
  PageFile(std::string directory, bool allows_ram);
  // Takes over a file that has a name in `directory`.
  PageFile(std::string directory, int descriptor);
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  ~PageFile();

  // Makes sure that the file system has room for these bytes. Throws Error where it has not.
  void reserve(uint64_t offset, uint64_t bytes);
  // Gives the file system back the room of these bytes; false where it cannot take it back.
  bool give_back(uint64_t offset, uint64_t bytes) noexcept;
  // Transfers go past the page cache from now on (O_DIRECT), or through it again. Returns 0 or the errno value.
  int set_direct(bool is_direct);
  // Has the page cache begin to write these bytes out; a hint.
  void write_back(uint64_t offset, uint64_t bytes) const noexcept;
  // Waits until these bytes are written out; a hint.
  void await_written(uint64_t offset, uint64_t bytes) const noexcept;
  // Has the page cache forget these bytes as far as they are written; a hint.
  void drop_cache(uint64_t offset, uint64_t bytes) const noexcept;
  // Has the kernel read nothing but what it is asked for, or ahead of that again; a hint.
  void set_readahead(bool reads_ahead) const noexcept;
  // Has the page cache begin to read these bytes; a hint.
  void prefetch(uint64_t offset, uint64_t bytes) const noexcept;

  // Transfers all bytes, through interruptions and partial results; they neither throw nor allocate. With direct I/O
  // memory, offset and bytes are whole blocks.
  IoResult read(void* data, uint64_t bytes, uint64_t offset) const noexcept;
  IoResult write(const void* data, uint64_t bytes, uint64_t offset) const noexcept;
  IoResult read(const MemoryParts& parts, uint64_t offset) const noexcept;
  IoResult write(const MemoryParts& parts, uint64_t offset) const noexcept;

  const std::string& directory() const { return directory_; }
  int descriptor() const { return fd_; }

 private:
  bool is_inherited() const;

  std::string directory_;
  const uint64_t fork_depth_;
  int fd_ = -1;
  const char* kind_ = "page file";  // what messages call it
  bool is_direct_ = false;
};

}  // namespace poet
