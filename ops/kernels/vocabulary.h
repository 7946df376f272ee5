// The matrix of a language model's output layer, some words at a time: floats, or of few bits, in memory or in a store.
#pragma once

#include <optional>

#include "kernels/panels.h"
#include "kernels/quantized_rows.h"

namespace poet {

// Of the attributes `matrix`, which has a row for each word, `panel_rows`, `transposed` and `bits`.
class VocabularyShape {
 public:
  explicit VocabularyShape(const NodeInfo& node);

  uint64_t words() const { return panels.rows(); }
  uint64_t width() const { return panels.columns(); }
  uint64_t bytes() const { return panels.bytes(); }
  size_t inputs() const { return quantization ? 2 + static_cast<size_t>(quantization->is_zeroed()) : 1; }

  const Panels panels;
  const bool has_rows;  // one for each word; else it lies with a column for each
  std::optional<Quantization> quantization;
};

class Vocabulary {
 public:
  // Of inputs from `first` on.
  Vocabulary(const Context& context, size_t first, const VocabularyShape& shape);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // Floats that `panel` writes, and bytes that it reads codes to.
  uint64_t panel_floats() const { return is_in_place() ? 0 : shape_.panels.most_rows() * shape_.width(); }
  uint64_t spare_bytes() const;
  // Says where that room is.
  void take(float* panel, unsigned char* spare);

  // Some words, each a row or a column as the whole matrix has them.
  float* panel(const Workers& workers, Panel words);
  // Whether something of it is in a store. Single words of it are only to be had of a panel, for a store reads pages.
  bool is_stored() const { return rows_ ? rows_->spare_bytes(1) != 0 : data_ == nullptr; }
  // Writes the numbers of one word that is in memory.
  void word(uint64_t word, float* to) const;

 private:
  bool is_in_place() const { return data_ != nullptr && shape_.has_rows; }

  const VocabularyShape& shape_;
  float* data_ = nullptr;
  std::optional<Stored> stored_;
  std::optional<QuantizedRows> rows_;
  std::optional<QuantizedPanels> panels_;
  float* panel_ = nullptr;
};

}  // namespace poet
