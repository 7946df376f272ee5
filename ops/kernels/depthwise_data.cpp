// The input's gradient of a convolution in which every channel has one filter of its own.
//
//   DepthwiseDataGradient(dY, W) -> dX
//       dY is [batch, channels, rows, columns], W [channels, 1, kernel] and dX [batch, channels, image], all float. The
//       integer lists `image`, `kernel`, `strides`, `dilations` and `begins` (the padding before the image) have two
//       entries each.
//
// A pixel is the sum of products, tap after tap, from zero on: so the bits are those of the runtime's ConvTranspose and
// ConvGrad, whose matrix products are single products here. Those run on one thread.
#include <algorithm>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"
#include "kernels/window.h"

namespace poet {
namespace {

// What one tap adds: of rows of dY, each `count` numbers, to rows of dX.
struct Tap {
  uint64_t from, from_pitch;
  uint64_t to, to_pitch;
  uint64_t rows, count;
};

// Adds products with each tap's weight to pixels that are `stride` columns apart.
template <uint64_t kStride>
inline void add_taps(float* d_x, const float* d_y, const float* weights, const std::vector<Tap>& taps,
                     uint64_t stride) {
  const uint64_t step = kStride == 0 ? stride : kStride;
  for (const Tap& tap : taps) {
    const float weight = *weights++;
    const float* __restrict from = d_y + tap.from;
    float* __restrict to = d_x + tap.to;
    for (uint64_t row = 0; row < tap.rows; ++row, from += tap.from_pitch, to += tap.to_pitch)
      for (uint64_t k = 0; k < tap.count; ++k) to[k * step] += weight * from[k];
  }
}

POET_WIDE void spread(float* d_x, const float* d_y, const float* weights, const std::vector<Tap>& taps,
                      uint64_t stride) {
  if (stride == 1) {
    add_taps<1>(d_x, d_y, weights, taps, stride);
  } else if (stride == 2) {
    add_taps<2>(d_x, d_y, weights, taps, stride);
  } else {
    add_taps<0>(d_x, d_y, weights, taps, stride);
  }
}

class DepthwiseDataGradient final : public Kernel {
 public:
  explicit DepthwiseDataGradient(const NodeInfo& node)
      : rows_(read_axis(node, 0, 2)), columns_(read_axis(node, 1, 2)), image_(require_image(node, 2)) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0), weight = context.input(1);
    const Shape& given = gradient.layout.shape;
    const Shape& filters = weight.layout.shape;
    const bool four = given.rank() == 4 && filters.rank() == 4;
    if (!four || gradient.layout.dtype != kFloat || weight.layout.dtype != kFloat ||
        filters.data()[0] != given.data()[1] || filters.data()[1] != 1 ||
        static_cast<uint64_t>(filters.data()[2]) != rows_.kernel ||
        static_cast<uint64_t>(filters.data()[3]) != columns_.kernel)
      throw Error("a gradient of shape " + to_string(given) + " and filters of shape " + to_string(filters) +
                  " are no depthwise convolution's, or not of float");
    Shape shape = given;
    std::copy_n(image_.data(), 2, shape.data() + 2);
    auto* const d_x = static_cast<float*>(context.output(0, shape));
    const auto* const d_y = static_cast<const float*>(gradient.data);
    const auto* const weights = static_cast<const float*>(weight.data);
    const auto channels = static_cast<uint64_t>(given.data()[1]);
    const uint64_t planes = static_cast<uint64_t>(given.data()[0]) * channels;
    const auto windows = static_cast<uint64_t>(given.data()[2]) * static_cast<uint64_t>(given.data()[3]);
    const auto pixels = static_cast<uint64_t>(image_.data()[0]) * static_cast<uint64_t>(image_.data()[1]);
    const std::vector<Tap> taps =
        read_taps(static_cast<uint64_t>(given.data()[2]), static_cast<uint64_t>(given.data()[3]));
    each_item(context.workers(), planes, pixels + windows, [&](uint64_t plane) {
      std::fill_n(d_x + plane * pixels, pixels, 0.0F);
      spread(d_x + plane * pixels, d_y + plane * windows, weights + plane % channels * taps.size(), taps,
             columns_.stride);
    });
  }

 private:
  std::vector<Tap> read_taps(uint64_t height, uint64_t width) const {
    const auto image_height = static_cast<uint64_t>(image_.data()[0]),
               image_width = static_cast<uint64_t>(image_.data()[1]);
    std::vector<Tap> taps;
    for (uint64_t i = 0; i < rows_.kernel; ++i)
      for (uint64_t j = 0; j < columns_.kernel; ++j) {
        const WindowRange down = rows_.windows_of(i, image_height, height);
        const WindowRange across = columns_.windows_of(j, image_width, width);
        Tap tap{down.first * width + across.first, width, 0, rows_.stride * image_width, 0, 0};
        if (down.first < down.end && across.first < across.end) {
          const uint64_t row = down.first * rows_.stride + i * rows_.dilation - rows_.begin;
          tap.to = row * image_width + across.first * columns_.stride + j * columns_.dilation - columns_.begin;
          tap.rows = down.end - down.first;
          tap.count = across.end - across.first;
        }
        taps.push_back(tap);
      }
    return taps;
  }

  const Axis rows_, columns_;
  const Shape image_;
};

}  // namespace

const OpDefinition kDepthwiseDataGradient{
    "DepthwiseDataGradient", 1, {kFloat}, Sharing::kNone, create<DepthwiseDataGradient>, infer_nothing};

}  // namespace poet
