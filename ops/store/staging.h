// Memory of the library's own that transfers pass through, counted beside ONNX Runtime's.
#pragma once

#include <cstdint>
#include <utility>

namespace poet {

class Staging {
 public:
  Staging() = default;
  explicit Staging(uint64_t bytes);  // in whole blocks of direct I/O; throws Error where that memory is missing
  Staging(Staging&& other) noexcept { swap(other); }
  Staging& operator=(Staging&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Staging();

  void swap(Staging& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  unsigned char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  unsigned char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace poet
