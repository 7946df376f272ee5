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
#include <cstring>
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
void accumulate(void* buffer, const Tensor& part, uint64_t offset, bool overwrite) {
  T* to = static_cast<T*>(buffer) + offset;
  if (part.layout.bytes == 0) return;
  if (overwrite) {
    std::memcpy(to, part.data, part.layout.bytes);
  } else {
    add(to, static_cast<const T*>(part.data), part.layout.bytes / sizeof(T));
  }
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
      accumulate<float>(buffer.data, part, offset_, overwrite);
    } else {
      accumulate<double>(buffer.data, part, offset_, overwrite);
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

template <typename T>
void accumulate_rows(T* buffer, int64_t row_count, uint64_t width, const std::vector<int64_t>& rows, const T* gradient,
                     bool overwrite) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  std::vector<T> sum(width);
  int64_t done = 0;
  for (size_t next = 0; next < order.size();) {
    const int64_t row = rows[order[next]];
    T* to = buffer + static_cast<uint64_t>(row) * width;
    accumulate_zero(buffer + static_cast<uint64_t>(done) * width, static_cast<uint64_t>(row - done) * width, overwrite);
    std::fill(sum.begin(), sum.end(), T{0});
    for (; next < order.size() && rows[order[next]] == row; ++next)
      add(sum.data(), gradient + order[next] * width, width);
    if (overwrite) {
      std::copy(sum.begin(), sum.end(), to);
    } else {
      add(to, sum.data(), width);
    }
    done = row + 1;
  }
  accumulate_zero(buffer + static_cast<uint64_t>(done) * width, static_cast<uint64_t>(row_count - done) * width,
                  overwrite);
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
      accumulate_rows(static_cast<float*>(buffer.data), row_count, width, rows,
                      static_cast<const float*>(gradient.data), overwrite);
    } else {
      accumulate_rows(static_cast<double*>(buffer.data), row_count, width, rows,
                      static_cast<const double*>(gradient.data), overwrite);
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
