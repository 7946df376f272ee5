// Normalization of rows by their root mean square, and its gradients.
//
//   RmsNormalize(X, scale) -> (Y, inverse)
//   RmsNormalizeGradient(dY, X, scale, inverse) -> dX
//   RmsNormalizeScaleGradient(dY, X, inverse) -> dScale
//
// With inverse = 1 / sqrt(mean(X^2) + epsilon), one for each row, and g = dY * scale, one scale for each column:
//
// - Y = X * inverse * scale;
// - dX = inverse * (g - n * sum(g * n) / columns), with n = X * inverse and the sum over the columns of the row;
// - dScale = sum(dY * n), over the rows.
//
// All are float, and inverse may be absent. A row is what lies along X's last axis. Sums are taken in lanes of float
// for a while, beyond that in double. dX may take dY's buffer.
#include <algorithm>
#include <cmath>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

constexpr uint64_t kLanes = 32;      // sums that numbers next to each other are added to in turn
constexpr uint64_t kMostTimes = 32;  // that a lane is added to before it goes on in double

// The sum of number(i) for every i below `columns`.
template <typename Number>
inline double sum_of(uint64_t columns, Number number) {
  double all = 0;
  for (uint64_t i = 0; i < columns;) {
    float lanes[kLanes] = {};
    const uint64_t end = std::min(i + kMostTimes * kLanes, columns);
    for (; i + kLanes <= end; i += kLanes)
      for (uint64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += number(i + lane);
    for (uint64_t lane = 0; i + lane < end; ++lane) lanes[lane] += number(i + lane);
    i = end;
    all += total<kLanes>(lanes);
  }
  return all;
}

POET_WIDE void normalize_row(float* y, float* inverse, const float* x, const float* scale, uint64_t columns,
                             double epsilon) {
  const double squares = sum_of(columns, [=](uint64_t i) { return x[i] * x[i]; });
  const auto by = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(columns) + epsilon));
  *inverse = by;
  write_each(y, columns, [=](uint64_t i) { return x[i] * by * scale[i]; });
}

POET_WIDE void write_gradient(float* d_x, const float* d_y, const float* x, const float* scale, float inverse,
                              uint64_t columns) {
  const double along = sum_of(columns, [=](uint64_t i) { return d_y[i] * scale[i] * (x[i] * inverse); });
  const auto slope = static_cast<float>(along / static_cast<double>(columns));
  write_each(d_x, columns, [=](uint64_t i) { return inverse * (d_y[i] * scale[i] - x[i] * inverse * slope); });
}

// Sums `width` columns, at most kLanes, from the first that `d_y` and `x` show.
POET_WIDE void sum_columns(float* d_scale, const float* d_y, const float* x, const float* inverse, uint64_t rows,
                           uint64_t columns, uint64_t width) {
  double sums[kLanes] = {};
  for (uint64_t row = 0; row < rows;) {
    float lanes[kLanes] = {};
    for (const uint64_t end = std::min(row + kMostTimes, rows); row < end; ++row)
      for (uint64_t lane = 0; lane < width; ++lane)
        lanes[lane] += d_y[row * columns + lane] * (x[row * columns + lane] * inverse[row]);
    for (uint64_t lane = 0; lane < width; ++lane) sums[lane] += static_cast<double>(lanes[lane]);
  }
  for (uint64_t lane = 0; lane < width; ++lane) d_scale[lane] = static_cast<float>(sums[lane]);
}

// A tensor of floats as rows along its last axis.
struct Rows {
  explicit Rows(const Tensor& tensor)
      : numbers(static_cast<const float*>(tensor.data)),
        count(tensor.elements() / row_width(tensor)),
        columns(row_width(tensor)) {}

  const float* numbers;
  uint64_t count;
  uint64_t columns;
};

class RmsNormalize final : public Kernel {
 public:
  explicit RmsNormalize(const NodeInfo& node) : epsilon_(static_cast<double>(node.require_float("epsilon"))) {}

  void compute(Context& context) override {
    const Tensor input = read_rows_of_floats(context, 0);
    const Rows x(input);
    const float* const scale = read_floats(context, 1, x.columns);
    Shape per_row = input.layout.shape;
    per_row.data()[per_row.rank() - 1] = 1;
    auto* const y = static_cast<float*>(context.output(0, input.layout.shape));
    const OptionalFloats made_inverse(context, 1, per_row);
    float* const inverse = made_inverse.get();
    each_item(context.workers(), x.count, x.columns, [&](uint64_t row) {
      normalize_row(y + row * x.columns, inverse + row, x.numbers + row * x.columns, scale, x.columns, epsilon_);
    });
  }

 private:
  const double epsilon_;
};

class RmsNormalizeGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = read_rows_of_floats(context, 0);
    const Rows d_y(gradient);
    const uint64_t columns = d_y.columns;
    const float* const x = read_floats(context, 1, d_y.count * columns);
    const float* const scale = read_floats(context, 2, columns);
    const float* const inverse = read_floats(context, 3, d_y.count);
    auto* const d_x = static_cast<float*>(context.output(0, gradient.layout.shape));
    each_item(context.workers(), d_y.count, columns, [&](uint64_t row) {
      write_gradient(d_x + row * columns, d_y.numbers + row * columns, x + row * columns, scale, inverse[row], columns);
    });
  }
};

class RmsNormalizeScaleGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = read_rows_of_floats(context, 0);
    const Rows d_y(gradient);
    const uint64_t columns = d_y.columns;
    const float* const x = read_floats(context, 1, d_y.count * columns);
    const float* const inverse = read_floats(context, 2, d_y.count);
    auto* const d_scale = static_cast<float*>(context.output(0, Shape::of(columns)));
    const uint64_t groups = columns / kLanes + (columns % kLanes != 0);
    each_item(context.workers(), groups, d_y.count * kLanes, [&](uint64_t group) {
      const uint64_t first = group * kLanes;
      sum_columns(d_scale + first, d_y.numbers + first, x + first, inverse, d_y.count, columns,
                  std::min(kLanes, columns - first));
    });
  }
};

}  // namespace

const OpDefinition kRmsNormalize{"RmsNormalize",  2, {kFloat, kFloat}, Sharing::kNone, create<RmsNormalize>,
                                 infer_from_input};
const OpDefinition kRmsNormalizeGradient{
    "RmsNormalizeGradient", 1, {kFloat}, Sharing::kAllowed, create<RmsNormalizeGradient>, infer_from_input};
const OpDefinition kRmsNormalizeScaleGradient{
    "RmsNormalizeScaleGradient", 1, {kFloat}, Sharing::kNone, create<RmsNormalizeScaleGradient>, infer_nothing};

}  // namespace poet
