// Matrices of integers of 4 or 8 bits, with a scale and a zero for each block of a row.
//
// A number is (code - zero) * scale, rounded once: what ONNX Runtime's DequantizeLinear makes of it. Codes of 4 bits
// lie two in a byte, the first in its lower half; so do zeros, one after the other over the ends of rows.
#pragma once

#include <memory>
#include <vector>

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
  // Codes, scales and zeros of neighbouring rows; the first zero may lie within a byte.
  struct Parts {
    const float* scales = nullptr;
    const unsigned char* codes = nullptr;
    const unsigned char* zeros = nullptr;
    uint64_t zero_bit = 0;
  };

  QuantizedRows(const Context& context, size_t first, const Quantization& how);

  uint64_t rows() const { return how_.rows(); }
  uint64_t columns() const { return how_.columns(); }
  // How much room `get` takes for so many rows. What is in memory takes none.
  uint64_t spare_bytes(uint64_t rows) const;
  // The same for a row by itself, behind which another one's may be.
  uint64_t row_spare_bytes() const { return (spare_bytes(1) + sizeof(float) - 1) / sizeof(float) * sizeof(float); }
  // Some rows, in place or read to `spare`, which is aligned as floats are.
  Parts get(uint64_t first, uint64_t rows, unsigned char* spare) const;
  // Makes floats of some of them, counted from the first of `parts`.
  void make(const Parts& parts, uint64_t first, uint64_t rows, float* to) const;
  // Makes floats of single rows. `spare` has room for each by itself. A store is read in the order of the rows.
  void gather(const Workers& workers, const std::vector<int64_t>& rows, float* to, unsigned char* spare) const;

 private:
  const Quantization& how_;
  GivenBytes codes_, scales_, zeros_;
};

// Panels of such a matrix, one after the other. A store is read in windows of several panels: it reads whole pages, and
// scales of a panel are a small part of one.
class QuantizedPanels {
 public:
  static constexpr uint64_t kWindowRows = 1024;  // at least (poet_onnx/graph/operators/quantized.py has the same)

  QuantizedPanels(const QuantizedRows& rows, uint64_t most_rows, unsigned char* spare);

  // How many rows `spare` has room for, where no panel has more than `most_rows`.
  static uint64_t window_rows(const QuantizedRows& rows, uint64_t most_rows);
  void read(const Workers& workers, uint64_t first, uint64_t rows, float* to);

 private:
  const QuantizedRows& rows_;
  const uint64_t window_rows_;
  unsigned char* const spare_;
  QuantizedRows::Parts parts_;
  uint64_t first_ = 0, end_ = 0;
};

}  // namespace poet
