#include "kernels/filter_panels.h"

namespace poet {

Filters::Batch Filters::batch(const Tensor& x) const {
  const Shape& shape = x.layout.shape;
  const auto size = [&](size_t axis) { return static_cast<uint64_t>(shape.data()[axis]); };
  if (x.layout.dtype != kFloat || shape.rank() != 2 + windows.dimensions() ||
      size(1) * windows.taps() != panels.columns())
    throw Error("x is of element type " + std::to_string(x.layout.dtype) + " and shape " + to_string(shape) +
                ", but must be float, and filters have " + std::to_string(panels.columns()) + " numbers for " +
                std::to_string(windows.taps()) + " taps");
  return {size(0), windows.image(size(1), shape, 2)};
}

Shape Filters::made_shape(uint64_t batch) const { return joined(batch, panels.rows(), windows.shape()); }

void Filters::require_made(const Tensor& d_y, uint64_t batch) const {
  if (d_y.layout.dtype != kFloat || d_y.layout.shape != made_shape(batch))
    throw Error("dY is of element type " + std::to_string(d_y.layout.dtype) + " and shape " +
                to_string(d_y.layout.shape) + ", but must be float and " + to_string(made_shape(batch)));
}

void ConvolvedPanels::columns(const Context& context, const Image& image, uint64_t batch, const float* x,
                              float* to) const {
  const Windows& windows = filters_.windows;
  const uint64_t depth = filters_.panels.columns();
  for (uint64_t n = 0; n < batch; ++n)
    windows.columns(context.workers(), image, {n, 1, 0, windows.rows()}, x, 0, depth,
                    to + n * depth * windows.pixels());
}

void ConvolvedPanels::run(const Context& context, Panel panel, float* matrix, float* columns, uint64_t batch,
                          const float* bias, float* y) const {
  const uint64_t depth = filters_.panels.columns(), pixels = filters_.windows.pixels();
  for (uint64_t n = 0; n < batch; ++n) {
    float* const part = y + n * filters_.made() + panel.first * pixels;
    gemm_.run(context, Floats::of(matrix, panel.rows, depth), Floats::of(columns + n * depth * pixels, depth, pixels),
              nullptr, Floats::of(part, panel.rows, pixels));
    for (uint64_t row = 0; bias != nullptr && row < panel.rows; ++row)
      for (uint64_t k = 0; k < pixels; ++k) part[row * pixels + k] += bias[panel.first + row];
  }
}

void SpreadPanels::run(const Context& context, Panel panel, float* matrix, float* d_y, uint64_t batch, float* spare,
                       float* columns) const {
  const uint64_t depth = filters_.panels.columns(), all = batch * filters_.windows.pixels();
  const Floats left = Floats::of(matrix, panel.rows, depth), sums = Floats::of(columns, depth, all);
  float* const rows = filters_.turned(context, panel, filters_.windows.whole(batch), d_y, spare);
  const Floats right = Floats::of(rows, panel.rows, all);
  if (panel.first == 0)
    first_.run(context, left, right, nullptr, sums);
  else
    next_.run(context, left, right, &sums, sums);
}

void WeightPanels::columns(const Context& context, const Image& image, uint64_t batch, const float* x,
                           float* to) const {
  const uint64_t depth = filters_.panels.columns();
  strips_.each(batch, [&](const Strip& strip) {
    filters_.windows.columns(context.workers(), image, strip, x, 0, depth,
                             to + depth * filters_.windows.samples_before(strip));
  });
}

void WeightPanels::run(const Context& context, Panel rows, float* d_y, float* columns, uint64_t batch, float* spare,
                       float* made) const {
  const uint64_t depth = filters_.panels.columns();
  const Floats product = Floats::of(made, rows.rows, depth);
  strips_.each(batch, [&](const Strip& strip) {
    const uint64_t before = filters_.windows.samples_before(strip), seen = filters_.windows.samples(strip);
    const Floats left = Floats::of(filters_.turned(context, rows, strip, d_y, spare), rows.rows, seen);
    const Floats right = Floats::of(columns + depth * before, depth, seen);
    (before == 0 ? first_ : next_).run(context, left, right, before == 0 ? nullptr : &product, product);
  });
}

}  // namespace poet
