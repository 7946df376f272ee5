// The file that pages live in: unnamed, private to the process, gone with it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace poet {

// The system calls in use; the driver in tests/ops_driver passes others, to see every failure handled.
struct FileCalls {
  ssize_t (*read)(int fd, void* data, size_t bytes, off_t offset);
  ssize_t (*write)(int fd, const void* data, size_t bytes, off_t offset);
  int (*reserve)(int fd, off_t offset, off_t bytes);  // returns the errno value
};
const FileCalls& system_calls();

// How a transfer ended.
struct IoResult {
  static constexpr int kEndOfFile = -1;
  int error = 0;  // 0, an errno value or kEndOfFile
  uint64_t done_bytes = 0;
};

// Reads and writes may be made from several threads at once.
class PageFile {
 public:
  // Opens a new unnamed file in `directory`, mode 0600. Throws Error where that fails.
  explicit PageFile(std::string directory, const FileCalls& calls = system_calls());
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  ~PageFile();

  // Makes sure that the file system has room for these bytes. Throws Error where it has not.
  void reserve(uint64_t offset, uint64_t bytes);
  // Transfers all bytes, through interruptions and partial results; they neither throw nor allocate.
  IoResult read(void* data, uint64_t bytes, uint64_t offset) const noexcept;
  IoResult write(const void* data, uint64_t bytes, uint64_t offset) const noexcept;

  // "cannot write the page file in /tmp: No space left on device (errno 28) at offset 4096 after 0 of 65536 bytes"
  std::string describe(const char* action, const IoResult& result, uint64_t bytes, uint64_t offset) const;

  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  const FileCalls& calls_;
  int fd_ = -1;
};

}  // namespace poet
