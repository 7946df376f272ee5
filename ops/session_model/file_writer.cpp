#include "session_model/file_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "process/error.h"

namespace poet {
namespace {

constexpr size_t kBufferBytes = 1 << 18;

}  // namespace

void FileWriter::add(std::string_view bytes) {
  buffer_.append(bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void FileWriter::flush() {
  write_at(done_, buffer_);
  done_ += buffer_.size();
  buffer_.clear();
}

void FileWriter::write_at(uint64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t some = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) throw Error(std::string("the session's model cannot be written: ") + std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(some));
    offset += static_cast<uint64_t>(some);
  }
}

}  // namespace poet
