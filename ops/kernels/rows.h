// Rows of a table, as indices name them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace poet {

// Row numbers of every index, each checked and made non-negative.
std::vector<int64_t> read_rows(const Tensor& indices, int64_t row_count);

// Places of rows, in the order of the rows, and then of the places.
std::vector<size_t> by_row(const std::vector<int64_t>& rows);

// Rows of a gradient, and the rows of a table that indices give them to. Those of one row are summed in the order of
// the indices, starting from zero, as GatherGrad does on one thread.
class GivenRows {
 public:
  GivenRows(std::vector<int64_t> rows, int64_t row_count, uint64_t width);

  // Of a table of so many elements. Throws Error.
  GivenRows(const Tensor& gradient, const Tensor& indices, uint64_t elements, int64_t row_count);

  int64_t row_count() const { return row_count_; }  // of the table
  uint64_t count() const { return rows_.size(); }   // of the gradient
  uint64_t width() const { return width_; }

  // Throws Error where a gradient does not have these rows, so many times.
  void require(const Tensor& gradient, uint64_t times = 1) const;

  // Adds the sums to the table's rows from `row`, which lies at `to`, to `end`, or makes these rows the sums.
  template <typename T>
  void accumulate(T* to, const T* gradient, uint64_t row, uint64_t end, bool overwrite) const {
    auto next = first_of(row);
    for (; row < end; ++row, to += width_) {
      const auto begin = next;
      while (next != order_.end() && rows_[*next] == static_cast<int64_t>(row)) ++next;
      if (begin == next) {
        add_zero(to, overwrite);
      } else {
        add_sum(to, gradient, &*begin, static_cast<size_t>(next - begin), overwrite);
      }
    }
  }

  // Writes `count` elements of the table's gradient from `first` on, which may begin and end within a row.
  void fill(float* to, const float* gradient, uint64_t first, uint64_t count) const;

  // Pages of the table, of so many elements, on which rows lie, in ascending order.
  std::vector<uint64_t> pages(uint64_t page_elements) const;

 private:
  // Where the places of a row begin, or of the next one that is given.
  std::vector<size_t>::const_iterator first_of(uint64_t row) const {
    return std::lower_bound(order_.begin(), order_.end(), static_cast<int64_t>(row),
                            [&](size_t i, int64_t r) { return rows_[i] < r; });
  }

  // A gradient of zero is not nothing, because -0 + 0 is +0.
  template <typename T>
  void add_zero(T* to, bool overwrite) const {
    if (overwrite) {
      std::fill_n(to, width_, T{0});
    } else {
      for (uint64_t i = 0; i < width_; ++i) to[i] += T{0};
    }
  }

  // Some columns at a time, whose sum is on the stack.
  template <typename T>
  void add_sum(T* to, const T* gradient, const size_t* places, size_t count, bool overwrite) const {
    constexpr uint64_t kColumns = 256;
    for (uint64_t first = 0; first < width_; first += kColumns) {
      const uint64_t some = std::min(kColumns, width_ - first);
      T sum[kColumns] = {};
      for (size_t i = 0; i < count; ++i) {
        const T* const from = gradient + places[i] * width_ + first;
        for (uint64_t k = 0; k < some; ++k) sum[k] += from[k];
      }
      if (overwrite) {
        std::copy_n(sum, some, to + first);
      } else {
        for (uint64_t k = 0; k < some; ++k) to[first + k] += sum[k];
      }
    }
  }

  std::vector<int64_t> rows_;
  std::vector<size_t> order_;  // of their places, by rows
  const int64_t row_count_;
  const uint64_t width_;
};

}  // namespace poet
