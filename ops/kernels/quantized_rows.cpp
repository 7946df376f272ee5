#include "kernels/quantized_rows.h"

#include <algorithm>

#include "kernels/vector_loops.h"

namespace poet {
namespace {

constexpr int32_t kUint8 = 2;
constexpr uint64_t kByte = 8;
constexpr uint64_t kChunk = 32;  // codes that are computed with at once

// What a block has for all its codes.
struct Block {
  int32_t flip;
  int32_t zero;
  float scale;
};

// Makes floats of so many codes of 4 bits, which is an even number.
POET_WIDE void read_halves(float* to, const unsigned char* codes, uint64_t count, Block block) {
  uint64_t i = 0;
  for (; i + kChunk <= count; i += kChunk, codes += kChunk / 2) {
    int32_t chunk[kChunk];
    for (uint64_t k = 0; k < kChunk / 2; ++k) {
      chunk[2 * k] = codes[k] & 0x0F;
      chunk[2 * k + 1] = codes[k] >> 4;
    }
    for (uint64_t k = 0; k < kChunk; ++k)
      to[i + k] = static_cast<float>((chunk[k] ^ block.flip) - block.zero) * block.scale;
  }
  for (; i < count; ++i) {
    const int32_t code = (codes[i % kChunk / 2] >> (i % 2 * 4)) & 0x0F;
    to[i] = static_cast<float>((code ^ block.flip) - block.zero) * block.scale;
  }
}

POET_WIDE void read_bytes(float* to, const unsigned char* codes, uint64_t count, Block block) {
  for (uint64_t i = 0; i < count; ++i)
    to[i] = static_cast<float>((int32_t{codes[i]} ^ block.flip) - block.zero) * block.scale;
}

uint64_t require_positive(const NodeInfo& node, const char* attribute) {
  const uint64_t value = node.require_nonnegative(attribute);
  if (value == 0) throw Error(std::string("the attribute '") + attribute + "' is 0");
  return value;
}

}  // namespace

GivenBytes::GivenBytes(const Context& context, size_t index, int32_t dtype, uint64_t bytes) {
  const Tensor tensor = context.input(index);
  uint64_t found = tensor.layout.bytes;
  int32_t type = tensor.layout.dtype;
  if (type == kInt64) {
    stored_ = std::make_unique<Stored>(context, index);
    found = stored_->bytes();
    type = dtype;
  } else {
    data_ = static_cast<const unsigned char*>(tensor.data);
  }
  if (found != bytes || type != dtype)
    throw Error("input " + std::to_string(index) + " has " + std::to_string(found) + " bytes of element type " +
                std::to_string(type) + ", but must have " + std::to_string(bytes) + " of type " +
                std::to_string(dtype));
}

const unsigned char* GivenBytes::get(uint64_t offset, uint64_t bytes, unsigned char* spare) const {
  if (stored_ == nullptr) return data_ + offset;
  stored_->store->read(stored_->tensor, offset, spare, bytes);
  return spare;
}

Quantization::Quantization(const NodeInfo& node)
    : bits_(node.require_nonnegative("bits")),
      block_(require_positive(node, "block")),
      is_zeroed_(node.require_nonnegative("zeroed") != 0) {
  const TensorLayout layout = make_layout(kFloat, node.require_shape("matrix"));
  if (layout.shape.rank() != 2 || layout.bytes == 0)
    throw Error("a matrix of shape " + to_string(layout.shape) + " has no rows of codes");
  rows_ = static_cast<uint64_t>(layout.shape.data()[0]);
  columns_ = static_cast<uint64_t>(layout.shape.data()[1]);
  if (bits_ != 4 && bits_ != kByte) throw Error("the attribute 'bits' is " + std::to_string(bits_) + ", not 4 or 8");
  const uint64_t in_byte = kByte / bits_;
  block_ = std::min(block_, columns_);  // keeps what is added up below small
  if (columns_ % in_byte != 0 || block_ % in_byte != 0)
    throw Error("a row of " + std::to_string(columns_) + " codes of " + std::to_string(bits_) + " bits, in blocks of " +
                std::to_string(block_) + ", does not begin with a byte");
  blocks_ = (columns_ + block_ - 1) / block_;
  if (node.require_nonnegative("signed") != 0) flip_ = int32_t{1} << (bits_ - 1);
}

QuantizedRows::QuantizedRows(const Context& context, size_t first, const Quantization& how)
    : how_(how),
      codes_(context, first, kUint8, how.code_bytes(how.rows_)),
      scales_(context, first + 1, kFloat, how.scale_bytes(how.rows_)) {
  if (how.is_zeroed_) zeros_ = GivenBytes(context, first + 2, kUint8, how.zero_bytes(how.rows_));
}

uint64_t QuantizedRows::spare_bytes(uint64_t rows) const {
  return (scales_.is_stored() ? how_.scale_bytes(rows) : 0) + (codes_.is_stored() ? how_.code_bytes(rows) : 0) +
         (zeros_.is_stored() ? how_.zero_bytes(rows) + 1 : 0);
}

void QuantizedRows::read(const Workers& workers, uint64_t first, uint64_t rows, float* to, unsigned char* spare) const {
  const uint64_t columns = how_.columns_, blocks = how_.blocks_, bits = how_.bits_;
  unsigned char* const for_codes = spare + (scales_.is_stored() ? how_.scale_bytes(rows) : 0);
  unsigned char* const for_zeros = for_codes + (codes_.is_stored() ? how_.code_bytes(rows) : 0);
  const auto* const scales =
      reinterpret_cast<const float*>(scales_.get(how_.scale_bytes(first), how_.scale_bytes(rows), spare));
  const unsigned char* const codes = codes_.get(how_.code_bytes(first), how_.code_bytes(rows), for_codes);
  const uint64_t first_zero = first * blocks * bits / kByte;  // the byte that has it
  const unsigned char* const zeros =
      how_.is_zeroed_ ? zeros_.get(first_zero, how_.zero_bytes(first + rows) - first_zero, for_zeros) : nullptr;
  const auto make = bits == kByte ? read_bytes : read_halves;
  const uint64_t first_bit = first * blocks * bits - first_zero * kByte;
  each_range(workers, rows, columns, [&](uint64_t from, uint64_t count) {
    uint64_t block = from * blocks, at = from * columns;
    for (const uint64_t end = (from + count) * columns; at < end; ++block) {
      const uint64_t zero_bit = first_bit + block * bits, left = columns - at % columns;
      const uint64_t codes_of_block = std::min(how_.block_, left);
      int32_t zero = 0;
      if (zeros != nullptr) zero = (zeros[zero_bit / kByte] >> (zero_bit % kByte)) & ((1 << bits) - 1);
      make(to + at, codes + at * bits / kByte, codes_of_block, {how_.flip_, zero ^ how_.flip_, scales[block]});
      at += codes_of_block;
    }
  });
}

}  // namespace poet
