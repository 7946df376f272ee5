// Matrices of integers of 4 or 8 bits, with a scale and a zero for each block of a row.
//
// A number is (code - zero) * scale, rounded once: what ONNX Runtime's DequantizeLinear makes of it. Codes of 4 bits
// lie two in a byte, the first in its lower half; so do zeros, one after the other over the ends of rows.
#pragma once

#include <memory>

#include "kernels/kernel.h"
#include "kernels/parallel.h"
#include "kernels/stored.h"

namespace poet {

// Bytes of an input, or of what it names in a store.
class GivenBytes {
 public:
  GivenBytes() = default;
  // Throws Error where there are not so many, or of another type.
  GivenBytes(const Context& context, size_t index, int32_t dtype, uint64_t bytes);

  // Some of them: in place, or read to `spare`.
  const unsigned char* get(uint64_t offset, uint64_t bytes, unsigned char* spare) const;
  bool is_stored() const { return stored_ != nullptr; }

 private:
  const unsigned char* data_ = nullptr;
  std::unique_ptr<Stored> stored_;
};

// How a matrix is quantized: of the attributes `matrix`, `bits`, `block`, `signed` and `zeroed`.
class Quantization {
 public:
  explicit Quantization(const NodeInfo& node);

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  bool is_zeroed() const { return is_zeroed_; }

 private:
  friend class QuantizedRows;
  uint64_t code_bytes(uint64_t rows) const { return rows * columns_ * bits_ / 8; }
  uint64_t scale_bytes(uint64_t rows) const { return rows * blocks_ * sizeof(float); }
  uint64_t zero_bytes(uint64_t rows) const { return (rows * blocks_ * bits_ + 7) / 8; }

  uint64_t rows_ = 0, columns_ = 0, bits_ = 0, block_ = 0, blocks_ = 0;
  int32_t flip_ = 0;  // makes an unsigned number of a signed one, and of its zero
  bool is_zeroed_ = false;
};

// The matrix that inputs from `first` on have: codes, scales and, where there are such, zeros.
class QuantizedRows {
 public:
  QuantizedRows(const Context& context, size_t first, const Quantization& how);

  // How much room `read` takes for so many rows, beside what it makes. What is in memory takes none.
  uint64_t spare_bytes(uint64_t rows) const;
  // Makes floats of some rows. `spare` is aligned as floats are.
  void read(const Workers& workers, uint64_t first, uint64_t rows, float* to, unsigned char* spare) const;

 private:
  const Quantization& how_;
  GivenBytes codes_, scales_, zeros_;
};

}  // namespace poet
