// Writes an open file from its beginning on, and again over what was written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace poet {

class FileWriter {
 public:
  explicit FileWriter(int descriptor) : descriptor_(descriptor) {}
  uint64_t position() const { return done_ + buffer_.size(); }
  void add(std::string_view bytes);  // throws Error, as the others do
  void flush();
  void write_at(uint64_t offset, std::string_view bytes) const;

 private:
  int descriptor_;
  uint64_t done_ = 0;
  std::string buffer_;
};

}  // namespace poet
