// The gradient of layer normalization, in one node.
//
//   LayerNormalizeGradient(dY, X, scale, mean, inverse) -> (dX, dScale, dBias)
//
// With n = (X - mean) * inverse, one mean and inverse for each row, and g = dY * scale, one scale for each column:
//
// - dBias = sum(dY) and dScale = sum(dY * n), over the rows;
// - dX = inverse * (g - sum(g) / columns - n * sum(g * n) / columns), with sums over the columns of the row.
//
// All are float. A row has as many columns as there are scales. Sums are taken in lanes of float for a while, beyond
// that in double. dX may take dY's buffer.
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

constexpr uint64_t kLanes = 32;       // sums that numbers next to each other are added to in turn
constexpr uint64_t kMostTimes = 256;  // that a lane is added to before it goes on in double

struct Matrix {
  const float* d_y;
  const float* x;
  const float* scale;
  const float* mean;
  const float* inverse;
  uint64_t rows;
  uint64_t columns;
};

// Sums `width` columns, at most kLanes, from `first` on.
POET_WIDE void sum_columns(float* d_scale, float* d_bias, const Matrix& by, uint64_t first, uint64_t width) {
  double scales[kLanes] = {}, biases[kLanes] = {};
  for (uint64_t row = 0; row < by.rows;) {
    float products[kLanes] = {}, lanes[kLanes] = {};
    for (const uint64_t end = std::min(row + kMostTimes, by.rows); row < end; ++row) {
      const float* d_y = by.d_y + row * by.columns + first;
      const float* x = by.x + row * by.columns + first;
      const float mean = by.mean[row], inverse = by.inverse[row];
      for (uint64_t lane = 0; lane < width; ++lane) {
        lanes[lane] += d_y[lane];
        products[lane] += d_y[lane] * ((x[lane] - mean) * inverse);
      }
    }
    for (uint64_t lane = 0; lane < width; ++lane) {
      scales[lane] += static_cast<double>(products[lane]);
      biases[lane] += static_cast<double>(lanes[lane]);
    }
  }
  for (uint64_t lane = 0; lane < width; ++lane) {
    d_scale[first + lane] = static_cast<float>(scales[lane]);
    d_bias[first + lane] = static_cast<float>(biases[lane]);
  }
}

POET_WIDE void write_row(float* d_x, const Matrix& by, uint64_t row) {
  const float* d_y = by.d_y + row * by.columns;
  const float* x = by.x + row * by.columns;
  const float* scale = by.scale;
  const float mean = by.mean[row], inverse = by.inverse[row];
  double all = 0, along = 0;
  for (uint64_t i = 0; i < by.columns;) {
    float lanes[kLanes] = {}, products[kLanes] = {};
    const auto add = [&](uint64_t lane) {
      const float g = d_y[i + lane] * scale[i + lane];
      lanes[lane] += g;
      products[lane] += g * ((x[i + lane] - mean) * inverse);
    };
    const uint64_t end = std::min(i + kMostTimes * kLanes, by.columns);
    for (; i + kLanes <= end; i += kLanes)
      for (uint64_t lane = 0; lane < kLanes; ++lane) add(lane);
    for (uint64_t lane = 0; i + lane < end; ++lane) add(lane);
    i = end;
    all += total<kLanes>(lanes);
    along += total<kLanes>(products);
  }
  const auto columns = static_cast<double>(by.columns);
  const auto middle = static_cast<float>(all / columns), slope = static_cast<float>(along / columns);
  write_each(d_x + row * by.columns, by.columns,
             [=](uint64_t i) { return inverse * (d_y[i] * scale[i] - middle - (x[i] - mean) * inverse * slope); });
}

class LayerNormalizeGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor scale = context.input(2);
    const uint64_t rows = context.input(3).elements(), columns = scale.elements();
    if (gradient.layout.dtype != kFloat || gradient.elements() != rows * columns)
      throw Error("input 0 is " + described(gradient) + ", but must be " + std::to_string(rows) + " rows of " +
                  std::to_string(columns) + " floats");
    const Matrix by{static_cast<const float*>(gradient.data),
                    read_floats(context, 1, rows * columns),
                    read_floats(context, 2, columns),
                    read_floats(context, 3, rows),
                    read_floats(context, 4, rows),
                    rows,
                    columns};
    auto* d_x = static_cast<float*>(context.output(0, gradient.layout.shape));
    auto* d_scale = static_cast<float*>(context.output(1, scale.layout.shape));
    auto* d_bias = static_cast<float*>(context.output(2, scale.layout.shape));
    const uint64_t groups = columns / kLanes + (columns % kLanes != 0);
    each_item(context.workers(), groups, rows * kLanes, [&](uint64_t group) {
      sum_columns(d_scale, d_bias, by, group * kLanes, std::min(kLanes, columns - group * kLanes));
    });
    // Only now, for dX may take dY's place.
    each_item(context.workers(), rows, columns, [&](uint64_t row) { write_row(d_x, by, row); });
  }
};

}  // namespace

const OpDefinition kLayerNormalizeGradient{"LayerNormalizeGradient",       3,
                                           {kFloat, kFloat, kFloat},       Sharing::kAllowed,
                                           create<LayerNormalizeGradient>, infer_from_input};

}  // namespace poet
