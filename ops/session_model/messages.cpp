#include "session_model/messages.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace poet {
namespace {

constexpr uint64_t kWindowBytes = 1 << 16;

}  // namespace

FileBytes::FileBytes(int descriptor) : descriptor_(descriptor) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw Error(std::string("the model cannot be read: ") + std::strerror(errno));
  size_ = static_cast<uint64_t>(status.st_size);
}

unsigned char FileBytes::operator[](uint64_t at) {
  if (at < start_ || at - start_ >= window_.size()) {
    window_ = read(at, std::min(size_, at + kWindowBytes));
    start_ = at;
  }
  return static_cast<unsigned char>(window_[at - start_]);
}

std::string FileBytes::read(uint64_t begin, uint64_t end) const {
  std::string bytes(end - begin, '\0');
  for (uint64_t done = 0; done < bytes.size();) {
    const ssize_t some = pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(begin + done));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) throw Error(std::string("the model cannot be read: ") + std::strerror(errno));
    if (some == 0) throw Error("the model became shorter while it was read");
    done += static_cast<uint64_t>(some);
  }
  return bytes;
}

std::string_view last_text(std::string_view message, uint32_t number) {
  std::string_view found;
  each_field(message, [&](const Field& field) {
    if (field.number == number && field.form == kMessage) found = field.of(message);
  });
  return found;
}

void append_varint(std::string* out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out->push_back(static_cast<char>((number & 0x7F) | 0x80));
  out->push_back(static_cast<char>(number));
}

void append_text(std::string* out, uint32_t number, std::string_view text) {
  append_varint(out, uint64_t{number} << 3 | kMessage);
  append_varint(out, text.size());
  out->append(text);
}

}  // namespace poet
