// Maximum pooling that remembers in one byte where in its window each maximum was, and its gradient.
//
//   MaxPoolTaps(x) -> y, taps
//       y has the maximum of each window of each channel of x [n, c, ...], or NaN where the window has one; `taps`, of
//       uint8, the first tap that has it. Taps are counted through the window, the last dimension first. What is beside
//       the image is not looked at, and a window that sees nothing has minus infinity.
//   MaxPoolGradient(dY, taps) -> dX
//       dX has the sizes `image` behind those of images and channels, and is of zeros to which every element of dY is
//       added, in order, where the maximum of its window was.
//
// ONNX Runtime's MaxPool takes eight bytes for each place, several times as long with them as without, and skips NaN.
// The integer lists are those of windows (window.h): kernel, strides, dilations, begins and, of MaxPoolTaps, pixels.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "kernels/kernel.h"
#include "kernels/window.h"

namespace poet {
namespace {

constexpr size_t kAxes = 3;
constexpr uint64_t kMostTaps = 255;
constexpr int32_t kNoTap = 255;
constexpr uint64_t kColumns = 128;  // windows that are looked at together
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Sizes = std::array<uint64_t, kAxes>;

// One to three dimensions as three, of which the first may be of one pixel.
class Pool {
 public:
  explicit Pool(const NodeInfo& node) : dimensions_(node.require_shape("kernel").rank()) {
    if (dimensions_ < 1 || dimensions_ > kAxes)
      throw Error("windows have " + std::to_string(dimensions_) + " dimensions, but must have one to three");
    axes_.fill({1, 1, 1, 0});
    for (size_t i = 0; i < dimensions_; ++i) axes_[kAxes - dimensions_ + i] = read_axis(node, i, dimensions_);
    const auto most = [](const Axis& axis) { return std::min(axis.kernel, kMostTaps + 1); };
    if (most(axes_[0]) * most(axes_[1]) * most(axes_[2]) > kMostTaps)
      throw Error("a window has more than " + std::to_string(kMostTaps) + " taps");
    for (uint64_t depth = 0; depth < axes_[0].kernel; ++depth)
      for (uint64_t row = 0; row < axes_[1].kernel; ++row)
        for (uint64_t column = 0; column < axes_[2].kernel; ++column)
          taps_.push_back({depth * axes_[0].dilation, row * axes_[1].dilation, column * axes_[2].dilation});
  }

  size_t dimensions() const { return dimensions_; }
  // How many pixels each tap is behind the first, in each dimension.
  const std::vector<Sizes>& taps() const { return taps_; }
  const Axis& axis(size_t index) const { return axes_[index]; }

  // The last sizes of a tensor, or of a list of them alone; throws Error where it has other dimensions.
  Sizes sizes(const Shape& shape, size_t before) const {
    if (shape.rank() != before + dimensions_)
      throw Error("sizes of " + to_string(shape) + " are not those of " + std::to_string(dimensions_) + " dimensions");
    Sizes found{1, 1, 1};
    for (size_t i = 0; i < dimensions_; ++i)
      found[kAxes - dimensions_ + i] = static_cast<uint64_t>(shape.data()[before + i]);
    return found;
  }

  // The pixel of a window's first tap. One that lies before the image is larger than any size.
  uint64_t origin(size_t axis, uint64_t window) const { return window * axes_[axis].stride - axes_[axis].begin; }

 private:
  const size_t dimensions_;
  std::array<Axis, kAxes> axes_;
  std::vector<Sizes> taps_;
};

uint64_t product(const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

uint64_t planes_of(const Shape& shape) {
  return static_cast<uint64_t>(shape.data()[0]) * static_cast<uint64_t>(shape.data()[1]);
}

// The sizes of images and channels of a tensor, and others behind them.
Shape with_sizes(const Shape& shape, const Shape& sizes) {
  return joined(static_cast<uint64_t>(shape.data()[0]), static_cast<uint64_t>(shape.data()[1]), sizes);
}

// Takes a number for the maximum where it is larger, is none, or is the first. The lists are of one tap's windows.
inline void take(const float* x, uint64_t stride, int32_t tap, uint64_t count, float* most, int32_t* taps) {
  for (uint64_t i = 0; i < count; ++i) {
    const float value = x[i * stride], before = most[i];
    const int32_t at = taps[i];
    // Bits are combined, not conditions: so that the compiler may look at several windows at once.
    const bool is_taken = ((value > before) | (value != value) | (at == kNoTap)) & (before == before);
    most[i] = is_taken ? value : before;
    taps[i] = is_taken ? tap : at;
  }
}

class MaxPoolTaps final : public Kernel {
 public:
  explicit MaxPoolTaps(const NodeInfo& node) : pool_(node), made_(node.require_shape("pixels")) {
    windows_ = pool_.sizes(made_, 0);
  }

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    if (x.layout.dtype != kFloat)
      throw Error("the image is of element type " + std::to_string(x.layout.dtype) + ", but must be float");
    const Shape& shape = x.layout.shape;
    const Sizes image = pool_.sizes(shape, 2);
    const Shape made = with_sizes(shape, made_);
    auto* const y = static_cast<float*>(context.output(0, made));
    auto* const taps = static_cast<uint8_t*>(context.output(1, made));
    const auto* const from = static_cast<const float*>(x.data);
    const uint64_t rows = windows_[0] * windows_[1], width = windows_[2];
    each_item(context.workers(), planes_of(shape) * rows, width * pool_.taps().size(), [&](uint64_t row) {
      const uint64_t plane = row / rows, depth = row % rows / windows_[1], line = row % windows_[1];
      for (uint64_t first = 0; first < width; first += kColumns)
        pool(image, from + plane * product(image), {depth, line, first}, std::min(kColumns, width - first),
             y + row * width + first, taps + row * width + first);
    });
  }

 private:
  // Looks at `count` windows of a row, the first of which is `window`.
  void pool(const Sizes& image, const float* x, const Sizes& window, uint64_t count, float* y, uint8_t* taps) const {
    float most[kColumns];
    int32_t found[kColumns];
    std::fill_n(most, count, -kInfinity);
    std::fill_n(found, count, kNoTap);
    for (size_t tap = 0; tap < pool_.taps().size(); ++tap) {
      const Sizes& at = pool_.taps()[tap];
      const uint64_t depth = pool_.origin(0, window[0]) + at[0], line = pool_.origin(1, window[1]) + at[1];
      if (depth >= image[0] || line >= image[1]) continue;
      const Axis& axis = pool_.axis(2);
      const WindowRange all = axis.windows_of(at[2] / axis.dilation, image[2], windows_[2]);
      const uint64_t first = std::max(all.first, window[2]), end = std::min(all.end, window[2] + count);
      if (first >= end) continue;
      const float* const from = x + (depth * image[1] + line) * image[2] + pool_.origin(2, first) + at[2];
      const uint64_t place = first - window[2];
      const auto number = static_cast<int32_t>(tap);
      if (axis.stride == 1)
        take(from, 1, number, end - first, most + place, found + place);
      else if (axis.stride == 2)
        take(from, 2, number, end - first, most + place, found + place);
      else
        take(from, axis.stride, number, end - first, most + place, found + place);
    }
    std::copy_n(most, count, y);
    for (uint64_t i = 0; i < count; ++i) taps[i] = static_cast<uint8_t>(found[i]);
  }

  const Pool pool_;
  const Shape made_;
  Sizes windows_;
};

class MaxPoolGradient final : public Kernel {
 public:
  explicit MaxPoolGradient(const NodeInfo& node)
      : pool_(node), made_(require_image(node, pool_.dimensions())), image_(pool_.sizes(made_, 0)) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0), taps = context.input(1);
    if (gradient.layout.dtype != kFloat || taps.layout.dtype != kUint8 || taps.layout.shape != gradient.layout.shape)
      throw Error("inputs of element types " + std::to_string(gradient.layout.dtype) + " and " +
                  std::to_string(taps.layout.dtype) + " and of shapes " + to_string(gradient.layout.shape) + " and " +
                  to_string(taps.layout.shape) + " must be float, uint8 and alike");
    const Shape& shape = gradient.layout.shape;
    const Sizes windows = pool_.sizes(shape, 2);
    auto* const d_x = static_cast<float*>(context.output(0, with_sizes(shape, made_)));
    const auto* const d_y = static_cast<const float*>(gradient.data);
    const auto* const found = static_cast<const uint8_t*>(taps.data);
    const uint64_t size = product(image_), count = product(windows);
    std::atomic<bool> is_astray{false};
    each_item(context.workers(), planes_of(shape), size, [&](uint64_t plane) {
      std::fill_n(d_x + plane * size, size, 0.0F);
      if (!scatter(windows, d_y + plane * count, found + plane * count, d_x + plane * size)) is_astray = true;
    });
    if (is_astray) throw Error("a tap of a window lies beside the image");
  }

 private:
  // Returns false where a tap is none that sees the image. A window that sees nothing of it has no tap.
  bool scatter(const Sizes& windows, const float* d_y, const uint8_t* taps, float* d_x) const {
    const auto& [deep, high, wide] = windows;
    for (uint64_t depth = 0; depth < deep; ++depth)
      for (uint64_t row = 0; row < high; ++row) {
        const uint64_t first = pool_.origin(0, depth), second = pool_.origin(1, row);
        for (uint64_t column = 0; column < wide; ++column, ++d_y, ++taps) {
          if (*taps == kNoTap) continue;
          if (*taps >= pool_.taps().size()) return false;
          const Sizes& tap = pool_.taps()[*taps];
          const uint64_t x = first + tap[0], y = second + tap[1], z = pool_.origin(2, column) + tap[2];
          if (x >= image_[0] || y >= image_[1] || z >= image_[2]) return false;
          d_x[(x * image_[1] + y) * image_[2] + z] += *d_y;
        }
      }
    return true;
  }

  const Pool pool_;
  const Shape made_;
  const Sizes image_;
};

}  // namespace

const OpDefinition kMaxPoolTaps{"MaxPoolTaps", 2, {kFloat, kUint8}, Sharing::kNone, create<MaxPoolTaps>, infer_nothing};
const OpDefinition kMaxPoolGradient{"MaxPoolGradient", 1, {kFloat}, Sharing::kNone, create<MaxPoolGradient>,
                                    infer_nothing};

}  // namespace poet
