#include "kernels/vocabulary.h"

#include <cstring>

namespace poet {
namespace {

constexpr int64_t kFloatBits = 32;

}  // namespace

VocabularyShape::VocabularyShape(const NodeInfo& node)
    : panels(node), has_rows(node.require_nonnegative("transposed") != 0) {
  if (node.require_int("bits") != kFloatBits) quantization.emplace(node);
  if (quantization && !has_rows) throw Error("the attribute 'transposed' is 0, but codes have a row for each word");
}

Vocabulary::Vocabulary(const Context& context, size_t first, const VocabularyShape& shape) : shape_(shape) {
  if (shape.quantization) {
    rows_.emplace(context, first, *shape.quantization);
    return;
  }
  const Tensor tensor = context.input(first);
  const bool is_handle = tensor.layout.dtype == kInt64;
  if (is_handle && shape.has_rows) {
    stored_.emplace(context, first);
    if (stored_->bytes() == shape.bytes()) return;
    throw Error("the stored tensor has " + std::to_string(stored_->bytes()) + " bytes, but the matrix " +
                std::to_string(shape.bytes()));
  }
  if (tensor.layout.dtype != kFloat || tensor.layout.bytes != shape.bytes())
    throw Error("input " + std::to_string(first) + " has " + std::to_string(tensor.layout.bytes) +
                " bytes of element type " + std::to_string(tensor.layout.dtype) + ", but must have " +
                std::to_string(shape.bytes()) + " of type " + std::to_string(kFloat));
  data_ = static_cast<float*>(tensor.data);
}

uint64_t Vocabulary::spare_bytes() const {
  return rows_ ? rows_->spare_bytes(QuantizedPanels::window_rows(*rows_, shape_.panels.most_rows())) : 0;
}

void Vocabulary::take(float* panel, unsigned char* spare) {
  panel_ = panel;
  if (rows_) panels_.emplace(*rows_, shape_.panels.most_rows(), spare);
}

float* Vocabulary::panel(const Workers& workers, Panel words) {
  const uint64_t width = shape_.width(), all = shape_.words(), row_bytes = width * sizeof(float);
  if (is_in_place()) return data_ + words.first * width;
  if (rows_) {
    panels_->read(workers, words.first, words.rows, panel_);
  } else if (stored_) {
    stored_->store->read(stored_->tensor, words.first * row_bytes, panel_, words.rows * row_bytes);
  } else {
    each_range(workers, width, words.rows, [&](uint64_t first, uint64_t count) {
      for (uint64_t i = first; i < first + count; ++i)
        std::memcpy(panel_ + i * words.rows, data_ + i * all + words.first, words.rows * sizeof(float));
    });
  }
  return panel_;
}

void Vocabulary::word(uint64_t word, float* to) const {
  const uint64_t width = shape_.width();
  if (rows_) {
    rows_->make(rows_->get(word, 1, nullptr), 0, 1, to);
  } else if (shape_.has_rows) {
    std::memcpy(to, data_ + word * width, width * sizeof(float));
  } else {
    for (uint64_t i = 0; i < width; ++i) to[i] = data_[i * shape_.words() + word];
  }
}

}  // namespace poet
