#include "kernels/quantized_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/vector_loops.h"

namespace poet {
namespace {

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
    // Both codes of a byte, its lower half first, become bytes of their own: of 0xBA, 0x0A and 0x0B.
    uint16_t pairs[kChunk / 2];
    for (uint64_t k = 0; k < kChunk / 2; ++k) pairs[k] = static_cast<uint16_t>((codes[k] | codes[k] << 4) & 0x0F0F);
    unsigned char chunk[kChunk];
    std::memcpy(chunk, pairs, kChunk);
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

QuantizedRows::Parts QuantizedRows::get(uint64_t first, uint64_t rows, unsigned char* spare) const {
  unsigned char* const for_codes = spare + (scales_.is_stored() ? how_.scale_bytes(rows) : 0);
  unsigned char* const for_zeros = for_codes + (codes_.is_stored() ? how_.code_bytes(rows) : 0);
  Parts parts;
  parts.scales = reinterpret_cast<const float*>(scales_.get(how_.scale_bytes(first), how_.scale_bytes(rows), spare));
  parts.codes = codes_.get(how_.code_bytes(first), how_.code_bytes(rows), for_codes);
  if (how_.is_zeroed_) {
    const uint64_t bit = first * how_.blocks_ * how_.bits_, byte = bit / kByte;  // that has the first zero
    parts.zeros = zeros_.get(byte, how_.zero_bytes(first + rows) - byte, for_zeros);
    parts.zero_bit = bit - byte * kByte;
  }
  return parts;
}

void QuantizedRows::make(const Parts& parts, uint64_t first, uint64_t rows, float* to) const {
  const uint64_t columns = how_.columns_, bits = how_.bits_;
  const auto read = bits == kByte ? read_bytes : read_halves;
  uint64_t block = first * how_.blocks_;
  for (uint64_t at = first * columns, end = (first + rows) * columns; at < end; ++block) {
    const uint64_t zero_bit = parts.zero_bit + block * bits;
    const uint64_t count = std::min(how_.block_, columns - at % columns);
    int32_t zero = 0;
    if (parts.zeros != nullptr) zero = (parts.zeros[zero_bit / kByte] >> (zero_bit % kByte)) & ((1 << bits) - 1);
    read(to, parts.codes + at * bits / kByte, count, {how_.flip_, zero ^ how_.flip_, parts.scales[block]});
    to += count;
    at += count;
  }
}

void QuantizedRows::gather(const Workers& workers, const std::vector<int64_t>& rows, float* to,
                           unsigned char* spare) const {
  const uint64_t row_bytes = row_spare_bytes();
  std::vector<size_t> order(row_bytes == 0 ? 0 : rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  std::vector<Parts> parts(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t place = order.empty() ? i : order[i];
    parts[place] = get(static_cast<uint64_t>(rows[place]), 1, spare + place * row_bytes);
  }
  each_item(workers, rows.size(), how_.columns_, [&](uint64_t i) { make(parts[i], 0, 1, to + i * how_.columns_); });
}

QuantizedPanels::QuantizedPanels(const QuantizedRows& rows, uint64_t most_rows, unsigned char* spare)
    : rows_(rows), window_rows_(window_rows(rows, most_rows)), spare_(spare) {}

uint64_t QuantizedPanels::window_rows(const QuantizedRows& rows, uint64_t most_rows) {
  return std::min(rows.rows(), std::max(kWindowRows, most_rows));
}

void QuantizedPanels::read(const Workers& workers, uint64_t first, uint64_t rows, float* to) {
  if (first < first_ || first + rows > end_) {
    first_ = first;
    end_ = std::min(rows_.rows(), first + window_rows_);
    parts_ = rows_.get(first_, end_ - first_, spare_);
  }
  const uint64_t columns = rows_.columns();
  each_range(workers, rows, columns, [&](uint64_t from, uint64_t count) {
    rows_.make(parts_, first - first_ + from, count, to + from * columns);
  });
}

}  // namespace poet
