#include "kernels/rows.h"

#include <numeric>

namespace poet {

std::vector<int64_t> read_rows(const Tensor& indices, int64_t row_count) {
  const int32_t dtype = indices.layout.dtype;
  if (dtype != kInt32 && dtype != kInt64)
    throw Error("the indices are of element type " + std::to_string(dtype) + ", but must be int32 or int64");
  std::vector<int64_t> rows(indices.elements());
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t row =
        dtype == kInt64 ? static_cast<const int64_t*>(indices.data)[i] : static_cast<const int32_t*>(indices.data)[i];
    if (row < -row_count || row >= row_count)
      throw Error("index " + std::to_string(row) + " is outside of a buffer of " + std::to_string(row_count) + " rows");
    rows[i] = row < 0 ? row + row_count : row;
  }
  return rows;
}

GivenRows::GivenRows(std::vector<int64_t> rows, int64_t row_count, uint64_t width)
    : rows_(std::move(rows)), order_(rows_.size()), row_count_(row_count), width_(width) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return rows_[a] < rows_[b]; });
}

void GivenRows::require(const Tensor& gradient, uint64_t times) const {
  const uint64_t given = gradient.elements(), each = times * width_;
  const bool fits = each == 0 ? given == 0 : given % each == 0 && given / each == rows_.size();
  if (!fits)
    throw Error("the gradient has " + std::to_string(given) + " elements, but " + std::to_string(rows_.size()) +
                " indices of rows of " + std::to_string(width_) + " name " + std::to_string(each * rows_.size()));
}

}  // namespace poet
