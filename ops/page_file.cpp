#include "page_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>

#include "error.h"

namespace poet {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr int kNameAttempts = 16;
// Linux transfers at most 0x7ffff000 bytes in one call: pread(2).
constexpr uint64_t kMaxCallBytes = 0x7ffff000;

std::string error_text(int error) {
  return std::system_category().message(error) + " (errno " + std::to_string(error) + ")";
}

// For file systems without O_TMPFILE: a new name that nobody can guess or have prepared, removed at once.
int open_and_unlink(const std::string& directory) {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) return -1;
    char name[48];
    std::snprintf(name, sizeof name, "/.poet-pages-%016llx", static_cast<unsigned long long>(random));
    const std::string path = directory + name;
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd >= 0) unlink(path.c_str());
    return fd;
  }
  return -1;
}

bool lacks_tmpfile(int error) { return error == EOPNOTSUPP || error == EISDIR || error == EINVAL; }

// Repeats `call(done_bytes, chunk_bytes)` until all bytes are transferred.
template <class Call>
IoResult transfer(uint64_t bytes, uint64_t offset, Call&& call) noexcept {
  IoResult result;
  if (offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - bytes) {
    result.error = EFBIG;
    return result;
  }
  while (result.done_bytes < bytes) {
    const ssize_t moved = call(result.done_bytes, std::min(bytes - result.done_bytes, kMaxCallBytes));
    if (moved > 0) {
      result.done_bytes += static_cast<uint64_t>(moved);
    } else if (moved == 0) {
      result.error = IoResult::kEndOfFile;
      return result;
    } else if (errno != EINTR) {
      result.error = errno;
      return result;
    }
  }
  return result;
}

}  // namespace

const FileCalls& system_calls() {
  static const FileCalls calls{pread, pwrite, posix_fallocate};
  return calls;
}

PageFile::PageFile(std::string directory, const FileCalls& calls) : directory_(std::move(directory)), calls_(calls) {
  // O_EXCL with O_TMPFILE: the file can never be given a name.
  fd_ = open(directory_.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, kOwnerOnly);
  if (fd_ < 0 && lacks_tmpfile(errno)) fd_ = open_and_unlink(directory_);
  if (fd_ < 0) throw Error("cannot make a page file in " + directory_ + ": " + error_text(errno));
}

PageFile::~PageFile() { close(fd_); }

void PageFile::reserve(uint64_t offset, uint64_t bytes) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  int error = 0;
  if (bytes > kMax || offset > kMax - bytes) {
    error = EFBIG;
  } else {
    do {
      error = calls_.reserve(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (error == EINTR);
  }
  if (error != 0)
    throw Error(describe("reserve room in", IoResult{error, 0}, bytes, offset) +
                "; free space there or choose another page directory");
}

IoResult PageFile::read(void* data, uint64_t bytes, uint64_t offset) const noexcept {
  return transfer(bytes, offset, [&](uint64_t done, uint64_t chunk) {
    return calls_.read(fd_, static_cast<char*>(data) + done, chunk, static_cast<off_t>(offset + done));
  });
}

IoResult PageFile::write(const void* data, uint64_t bytes, uint64_t offset) const noexcept {
  return transfer(bytes, offset, [&](uint64_t done, uint64_t chunk) {
    return calls_.write(fd_, static_cast<const char*>(data) + done, chunk, static_cast<off_t>(offset + done));
  });
}

std::string PageFile::describe(const char* action, const IoResult& result, uint64_t bytes, uint64_t offset) const {
  const std::string cause = result.error == IoResult::kEndOfFile ? "unexpected end of file" : error_text(result.error);
  return std::string("cannot ") + action + " the page file in " + directory_ + ": " + cause + " at offset " +
         std::to_string(offset + result.done_bytes) + ", after " + std::to_string(result.done_bytes) + " of " +
         std::to_string(bytes) + " bytes";
}

}  // namespace poet
