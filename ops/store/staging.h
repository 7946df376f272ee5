// Memory of the library's own that transfers pass through, counted beside ONNX Runtime's.
#pragma once

#include <cstdint>

namespace poet {

class Staging {
 public:
  Staging() = default;
  explicit Staging(uint64_t bytes);  // in whole blocks of direct I/O; throws Error where that memory is missing
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  unsigned char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  unsigned char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace poet
