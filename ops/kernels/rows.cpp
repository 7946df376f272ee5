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

std::vector<size_t> by_row(const std::vector<int64_t>& rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  return order;
}

GivenRows::GivenRows(std::vector<int64_t> rows, int64_t row_count, uint64_t width)
    : rows_(std::move(rows)), order_(by_row(rows_)), row_count_(row_count), width_(width) {}

GivenRows::GivenRows(const Tensor& gradient, const Tensor& indices, uint64_t elements, int64_t row_count)
    : GivenRows(read_rows(indices, row_count), row_count,
                row_count == 0 ? 0 : elements / static_cast<uint64_t>(row_count)) {
  require(gradient);
}

void GivenRows::require(const Tensor& gradient, uint64_t times) const {
  const uint64_t given = gradient.elements(), each = times * width_;
  const bool fits = each == 0 ? given == 0 : given % each == 0 && given / each == rows_.size();
  if (!fits)
    throw Error("the gradient has " + std::to_string(given) + " elements, but " + std::to_string(rows_.size()) +
                " indices of rows of " + std::to_string(width_) + " name " + std::to_string(each * rows_.size()));
}

void GivenRows::fill(float* to, const float* gradient, uint64_t first, uint64_t count) const {
  std::fill_n(to, count, 0.0F);
  if (width_ == 0 || count == 0) return;
  const auto last = static_cast<int64_t>((first + count - 1) / width_);
  for (auto next = first_of(first / width_); next != order_.end() && rows_[*next] <= last; ++next) {
    const uint64_t begin = static_cast<uint64_t>(rows_[*next]) * width_;  // of the row, in the table
    const uint64_t from = std::max(begin, first), end = std::min(begin + width_, first + count);
    const float* const given = gradient + *next * width_ + (from - begin);
    float* const sum = to + (from - first);
    for (uint64_t i = 0; i < end - from; ++i) sum[i] += given[i];
  }
}

std::vector<uint64_t> GivenRows::pages(uint64_t page_elements) const {
  std::vector<uint64_t> found;
  for (const size_t place : order_) {
    const uint64_t begin = static_cast<uint64_t>(rows_[place]) * width_;
    for (uint64_t page = begin / page_elements; page * page_elements < begin + width_; ++page)
      if (found.empty() || found.back() < page) found.push_back(page);
  }
  return found;
}

}  // namespace poet
