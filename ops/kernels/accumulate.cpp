// Gradient accumulation that never holds a whole weight gradient.
//
//   Accumulate(buffer, part, overwrite, after...) -> updated
//       adds `part` to the buffer's elements from `offset` on, or puts it there
//   AccumulateRows(buffer, indices, gradient, overwrite, after...) -> updated
//       adds the rows of `gradient` to the rows of the buffer that `indices` name, or makes the buffer that sum
//
// Both change the buffer, their first input, in place, and give the bits that a whole gradient and ONNX Runtime's
// InPlaceAccumulatorV2 would give: an element is the old value plus the gradient's, which for AccumulateRows is summed
// first, in the order of the indices and starting from zero, as GatherGrad does.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/rows.h"

namespace poet {
namespace {

constexpr size_t kFlag = 2;      // input of Accumulate
constexpr size_t kRowsFlag = 3;  // input of AccumulateRows

void require_same_type(const Tensor& buffer, const Tensor& gradient) {
  const int32_t dtype = buffer.layout.dtype;
  if (dtype != gradient.layout.dtype || (dtype != kFloat && dtype != kDouble))
    throw Error("the buffer is of element type " + std::to_string(dtype) + ", the gradient of " +
                std::to_string(gradient.layout.dtype) + ": both must be float or both double");
}

template <typename T>
void add(T* to, const T* from, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <typename T>
void accumulate(const Workers& workers, void* buffer, const Tensor& part, uint64_t offset, bool overwrite) {
  T* const to = static_cast<T*>(buffer) + offset;
  const auto* from = static_cast<const T*>(part.data);
  each_range(workers, part.elements(), 1, [=](uint64_t first, uint64_t count) {
    if (overwrite) {
      std::copy_n(from + first, count, to + first);
    } else {
      add(to + first, from + first, count);
    }
  });
}

class Accumulate final : public Kernel {
 public:
  explicit Accumulate(const NodeInfo& node) : offset_(node.require_nonnegative("offset")) {}

  void compute(Context& context) override {
    const Tensor buffer = context.input(0);
    const Tensor part = context.input(1);
    const bool overwrite = read_flag(context, kFlag);
    require_same_type(buffer, part);
    require_room(buffer, 0, offset_, part.elements());
    require_apart({buffer.memory(), part.memory()}, 1);
    if (buffer.layout.dtype == kFloat) {
      accumulate<float>(context.workers(), buffer.data, part, offset_, overwrite);
    } else {
      accumulate<double>(context.workers(), buffer.data, part, offset_, overwrite);
    }
    context.output_true();
  }

 private:
  uint64_t offset_;
};

// A gradient of zero is not nothing, because -0 + 0 is +0.
template <typename T>
void accumulate_zero(T* buffer, uint64_t count, bool overwrite) {
  if (overwrite) {
    std::fill_n(buffer, count, T{0});
  } else {
    for (uint64_t i = 0; i < count; ++i) buffer[i] += T{0};
  }
}

// Rows of a gradient, and the rows of a buffer that indices give them to.
template <typename T>
class GivenRows {
 public:
  GivenRows(const Tensor& gradient, uint64_t width, const std::vector<int64_t>& rows)
      : data_(static_cast<const T*>(gradient.data)), width_(width), rows_(rows), order_(rows.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  }

  // Accumulates into the buffer's rows from `row` to `end`.
  void accumulate(T* buffer, int64_t row, int64_t end, bool overwrite) const {
    auto next = std::lower_bound(order_.begin(), order_.end(), row, [&](size_t i, int64_t r) { return rows_[i] < r; });
    for (; row < end; ++row) {
      const auto begin = next;
      while (next != order_.end() && rows_[*next] == row) ++next;
      T* const to = buffer + static_cast<uint64_t>(row) * width_;
      if (begin == next) {
        accumulate_zero(to, width_, overwrite);
      } else {
        accumulate_sum(to, &*begin, static_cast<size_t>(next - begin), overwrite);
      }
    }
  }

 private:
  // Some columns at a time, whose sum is on the stack.
  void accumulate_sum(T* to, const size_t* places, size_t count, bool overwrite) const {
    constexpr uint64_t kColumns = 256;
    for (uint64_t first = 0; first < width_; first += kColumns) {
      const uint64_t some = std::min(kColumns, width_ - first);
      T sum[kColumns] = {};
      for (size_t i = 0; i < count; ++i) add(sum, data_ + places[i] * width_ + first, some);
      if (overwrite) {
        std::copy_n(sum, some, to + first);
      } else {
        add(to + first, sum, some);
      }
    }
  }

  const T* data_;
  const uint64_t width_;
  const std::vector<int64_t>& rows_;
  std::vector<size_t> order_;
};

template <typename T>
void accumulate_rows(const Workers& workers, const Tensor& buffer, int64_t row_count, const GivenRows<T>& given,
                     uint64_t width, bool overwrite) {
  each_range(workers, static_cast<uint64_t>(row_count), width, [&](uint64_t first, uint64_t count) {
    given.accumulate(static_cast<T*>(buffer.data), static_cast<int64_t>(first), static_cast<int64_t>(first + count),
                     overwrite);
  });
}

class AccumulateRows final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor buffer = context.input(0);
    const Tensor indices = context.input(1);
    const Tensor gradient = context.input(2);
    const bool overwrite = read_flag(context, kRowsFlag);
    require_same_type(buffer, gradient);
    if (buffer.layout.shape.rank() == 0) throw Error("the buffer is a scalar and has no rows");
    const int64_t row_count = buffer.layout.shape.data()[0];
    const std::vector<int64_t> rows = read_rows(indices, row_count);
    const uint64_t width = row_count == 0 ? 0 : buffer.elements() / static_cast<uint64_t>(row_count);
    const uint64_t given = gradient.elements();
    if (given != rows.size() * width)
      throw Error("the gradient has " + std::to_string(given) + " elements, but " + std::to_string(rows.size()) +
                  " indices of rows of " + std::to_string(width) + " name " + std::to_string(rows.size() * width));
    require_apart({buffer.memory(), gradient.memory()}, 1);
    if (buffer.layout.dtype == kFloat) {
      accumulate_rows<float>(context.workers(), buffer, row_count, {gradient, width, rows}, width, overwrite);
    } else {
      accumulate_rows<double>(context.workers(), buffer, row_count, {gradient, width, rows}, width, overwrite);
    }
    context.output_true();
  }
};

}  // namespace

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

const OpDefinition kAccumulate{"Accumulate", 1, {kBool}, Sharing::kNone, create<Accumulate>, infer_flag};
const OpDefinition kAccumulateRows{"AccumulateRows", 1, {kBool}, Sharing::kNone, create<AccumulateRows>, infer_flag};

}  // namespace poet
