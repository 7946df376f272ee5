#include "store/page_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>

#include "faults/faults.h"
#include "process/error.h"
#include "process/fork.h"
#include "store/page_directory.h"

namespace poet {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr const char* kName = "pages";
// Linux transfers at most 0x7ffff000 bytes in one call: pread(2).
constexpr uint64_t kMaxCallBytes = 0x7ffff000;
constexpr int kMaxIdleCalls = 16;  // in a row that transfer less than a unit

int open_file(int directory, const char* path, int flags) {
  const int error = faults::status([] { return 0; });
  if (error == 0) return openat(directory, path, flags | O_RDWR | O_CLOEXEC, kOwnerOnly);
  errno = error;
  return -1;
}

// For file systems without O_TMPFILE: a file in a new directory that nobody else may enter; both are removed at once.
int open_and_unlink(const std::string& directory) {
  std::string folder = directory + "/.poet-pages-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return -1;  // mode 0700
  const int inside = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const int fd = inside < 0 ? -1 : open_file(inside, kName, O_CREAT | O_EXCL | O_NOFOLLOW);
  const int error = errno;
  if (fd >= 0) unlinkat(inside, kName, 0);
  if (inside >= 0) close(inside);
  rmdir(folder.c_str());
  errno = error;
  return fd;
}

// Bytes that this process may still put on a file system; the largest number where it does not say.
uint64_t free_bytes(int descriptor) {
  struct statvfs status{};
  if (fstatvfs(descriptor, &status) != 0 || status.f_blocks == 0) return std::numeric_limits<uint64_t>::max();
  return (geteuid() == 0 ? status.f_bfree : status.f_bavail) * uint64_t{status.f_frsize};
}

bool lacks_tmpfile(int error) { return error == EOPNOTSUPP || error == EISDIR || error == EINVAL; }

// Repeats `call(done_bytes, chunk_bytes)` until all bytes are transferred. Only whole units count as done.
template <class Call>
IoResult transfer(uint64_t bytes, uint64_t offset, uint64_t unit, Call&& call) noexcept {
  IoResult result;
  if (offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - bytes) {
    result.error = EFBIG;
    return result;
  }
  int idle_calls = 0;
  while (result.done_bytes < bytes) {
    const uint64_t chunk = std::min(bytes - result.done_bytes, kMaxCallBytes);
    const ssize_t moved = faults::transfer(chunk, [&](size_t some) { return call(result.done_bytes, some); });
    if (moved > 0) {
      const uint64_t done = static_cast<uint64_t>(moved) / unit * unit;
      result.done_bytes += done;
      idle_calls = done != 0 ? 0 : idle_calls + 1;
      if (idle_calls == kMaxIdleCalls) result.error = EIO;
    } else if (moved == 0) {
      result.error = IoResult::kEndOfFile;
    } else if (errno != EINTR) {
      result.error = errno;
    }
    if (result.error != 0) return result;
  }
  return result;
}

}  // namespace

std::string error_text(int error) {
  switch (error) {
    case IoResult::kEndOfFile:
      return "unexpected end of file";
    case IoResult::kAltered:
      return "what was read is not what was written: the storage or another program altered it";
    case IoResult::kCipherFailed:
      return "the cipher of libcrypto failed";
    default:
      return std::system_category().message(error) + " (errno " + std::to_string(error) + ")";
  }
}

uint64_t MemoryParts::bytes() const {
  uint64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += parts[i].iov_len;
  return sum;
}

MemoryParts MemoryParts::behind(uint64_t done_bytes, uint64_t most_bytes) const {
  MemoryParts rest;
  for (int i = 0; i < count && most_bytes != 0; ++i) {
    const uint64_t skipped = std::min<uint64_t>(done_bytes, parts[i].iov_len);
    const uint64_t some = std::min<uint64_t>(most_bytes, parts[i].iov_len - skipped);
    if (some != 0) rest.add(static_cast<char*>(parts[i].iov_base) + skipped, some);
    done_bytes -= skipped;
    most_bytes -= some;
  }
  return rest;
}

PageFile::PageFile(std::string directory, bool allows_ram)
    : directory_(std::move(directory)), fork_depth_(fork_depth()) {
  do {
    // O_EXCL with O_TMPFILE: the file can never be given a name.
    fd_ = open_file(AT_FDCWD, directory_.c_str(), O_TMPFILE | O_EXCL);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0 && lacks_tmpfile(errno)) fd_ = open_and_unlink(directory_);
  if (fd_ < 0) throw Error("cannot make a page file in " + directory_ + ": " + error_text(errno));
  try {
    if (!allows_ram) require_storage(directory_, fd_);
  } catch (...) {
    close(fd_);
    throw;
  }
}

PageFile::PageFile(std::string directory, int descriptor)
    : directory_(std::move(directory)), fork_depth_(fork_depth()), fd_(descriptor), kind_("store") {}

PageFile::~PageFile() { close(fd_); }

bool PageFile::is_inherited() const { return fork_depth_ != fork_depth(); }

void PageFile::reserve(uint64_t offset, uint64_t bytes) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  const uint64_t room = free_bytes(fd_);
  int error = 0;
  if (bytes > kMax || offset > kMax - bytes) {
    error = EFBIG;
  } else if (bytes > room) {
    error = ENOSPC;  // where the file system cannot reserve, the C library would write until the disk is full
  } else {
    do {
      error =
          faults::status([&] { return posix_fallocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes)); });
    } while (error == EINTR);
  }
  if (error != 0)
    throw Error("cannot reserve " + std::to_string(bytes) + " bytes of the " + kind_ + " in " + directory_ + ": " +
                error_text(error) + " at offset " + std::to_string(offset) + "; " +
                (room == std::numeric_limits<uint64_t>::max() ? "" : std::to_string(room) + " bytes are free there: ") +
                "free more or choose another directory");
}

bool PageFile::give_back(uint64_t offset, uint64_t bytes) noexcept {
  return fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) == 0;
}

int PageFile::set_direct(bool is_direct) {
  if (is_inherited()) return 0;
  int error = 0;
  do {
    error = faults::status([&] {
      const int flags = fcntl(fd_, F_GETFL);
      if (flags < 0) return errno;
      return fcntl(fd_, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 ? 0 : errno;
    });
  } while (error == EINTR);
  if (error == 0) is_direct_ = is_direct;
  return error;
}

void PageFile::write_back(uint64_t offset, uint64_t bytes) const noexcept {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void PageFile::await_written(uint64_t offset, uint64_t bytes) const noexcept {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

void PageFile::drop_cache(uint64_t offset, uint64_t bytes) const noexcept {
  posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(whole_blocks(bytes)), POSIX_FADV_DONTNEED);
}

void PageFile::set_readahead(bool reads_ahead) const noexcept {
  if (is_inherited()) return;
  posix_fadvise(fd_, 0, 0, reads_ahead ? POSIX_FADV_NORMAL : POSIX_FADV_RANDOM);
}

void PageFile::prefetch(uint64_t offset, uint64_t bytes) const noexcept {
  posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

IoResult PageFile::read(void* data, uint64_t bytes, uint64_t offset) const noexcept {
  return transfer(bytes, offset, is_direct_ ? kBlockBytes : 1, [&](uint64_t done, size_t chunk) {
    return pread(fd_, static_cast<char*>(data) + done, chunk, static_cast<off_t>(offset + done));
  });
}

IoResult PageFile::read(const MemoryParts& parts, uint64_t offset) const noexcept {
  return transfer(parts.bytes(), offset, is_direct_ ? kBlockBytes : 1, [&](uint64_t done, size_t chunk) {
    const MemoryParts rest = parts.behind(done, chunk);
    return preadv(fd_, rest.parts, rest.count, static_cast<off_t>(offset + done));
  });
}

IoResult PageFile::write(const MemoryParts& parts, uint64_t offset) const noexcept {
  return transfer(parts.bytes(), offset, is_direct_ ? kBlockBytes : 1, [&](uint64_t done, size_t chunk) {
    const MemoryParts rest = parts.behind(done, chunk);
    return pwritev(fd_, rest.parts, rest.count, static_cast<off_t>(offset + done));
  });
}

IoResult PageFile::write(const void* data, uint64_t bytes, uint64_t offset) const noexcept {
  return transfer(bytes, offset, is_direct_ ? kBlockBytes : 1, [&](uint64_t done, size_t chunk) {
    return pwrite(fd_, static_cast<const char*>(data) + done, chunk, static_cast<off_t>(offset + done));
  });
}

}  // namespace poet
