// Element type, dimensions and size of a tensor: what a page remembers of what it holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "process/error.h"

namespace poet {

// Dimensions of any rank; up to eight live in the object, so that the usual tensor costs no allocation.
class Shape {
 public:
  Shape() = default;
  explicit Shape(size_t rank) { resize(rank); }

  template <class... Sizes>
  static Shape of(Sizes... sizes) {
    const std::array<int64_t, sizeof...(sizes)> all{static_cast<int64_t>(sizes)...};
    Shape shape(all.size());
    std::copy(all.begin(), all.end(), shape.data());
    return shape;
  }

  void resize(size_t rank) {
    if (rank > kInline) more_.resize(rank);
    rank_ = rank;
  }
  size_t rank() const { return rank_; }
  int64_t last() const { return rank_ == 0 ? 1 : data()[rank_ - 1]; }
  int64_t* data() { return rank_ > kInline ? more_.data() : few_.data(); }
  const int64_t* data() const { return rank_ > kInline ? more_.data() : few_.data(); }

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && std::equal(a.data(), a.data() + a.rank_, b.data());
  }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  static constexpr size_t kInline = 8;
  std::array<int64_t, kInline> few_{};
  std::vector<int64_t> more_;
  size_t rank_ = 0;
};

inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.rank(); ++i) text += (i ? "," : "") + std::to_string(shape.data()[i]);
  return text + "]";
}

// Bytes of one element of an ONNX type (onnx.TensorProto.DataType); 0 for strings, for types that pack several elements
// into a byte and for numbers that name no type.
inline uint64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case 2:   // UINT8
    case 3:   // INT8
    case 9:   // BOOL
    case 17:  // FLOAT8E4M3FN
    case 18:  // FLOAT8E4M3FNUZ
    case 19:  // FLOAT8E5M2
    case 20:  // FLOAT8E5M2FNUZ
    case 24:  // FLOAT8E8M0
      return 1;
    case 4:   // UINT16
    case 5:   // INT16
    case 10:  // FLOAT16
    case 16:  // BFLOAT16
      return 2;
    case 1:   // FLOAT
    case 6:   // INT32
    case 12:  // UINT32
      return 4;
    case 7:   // INT64
    case 11:  // DOUBLE
    case 13:  // UINT64
    case 14:  // COMPLEX64
      return 8;
    case 15:  // COMPLEX128
      return 16;
    default:
      return 0;
  }
}

struct TensorLayout {
  int32_t dtype = 0;
  Shape shape;
  uint64_t bytes = 0;
};

// The layout of a tensor; an Error where the type has no fixed element size, a dimension is negative or the size
// does not fit in 63 bits.
inline TensorLayout make_layout(int64_t dtype, Shape shape) {
  const bool known = dtype >= 0 && dtype <= std::numeric_limits<int32_t>::max();
  uint64_t bytes = known ? element_bytes(static_cast<int32_t>(dtype)) : 0;
  if (bytes == 0)
    throw Error("element type " + std::to_string(dtype) +
                " has no fixed size of whole bytes (strings and packed types below 8 bits cannot be handled)");
  constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  bool empty = false;
  bool overflow = false;
  for (size_t i = 0; i < shape.rank(); ++i) {
    const int64_t dim = shape.data()[i];
    if (dim < 0) throw Error("dimension " + std::to_string(i) + " of shape " + to_string(shape) + " is negative");
    empty = empty || dim == 0;
    overflow = overflow || (dim > 0 && bytes > kMaxBytes / static_cast<uint64_t>(dim));
    if (!overflow && dim > 0) bytes *= static_cast<uint64_t>(dim);
  }
  if (overflow && !empty) throw Error("shape " + to_string(shape) + " has more than 2^63 - 1 bytes");
  return TensorLayout{static_cast<int32_t>(dtype), std::move(shape), empty ? 0 : bytes};
}

}  // namespace poet
