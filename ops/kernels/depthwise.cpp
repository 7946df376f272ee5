// The weight's gradient of a convolution in which every channel has filters of its own.
//
//   DepthwiseWeightGradient(dY, X) -> dW
//       X is [batch, channels, height, width], dY [batch, channels * multiplier, rows, columns] and dW
//       [channels * multiplier, 1, kernel], all float. The integer lists `kernel`, `strides`, `dilations` and `begins`
//       (the padding before the image) have two entries each.
//
// One channel of X is copied into a small padded image whose columns are sorted by their place within a stride, so that
// what lies under a tap is one piece of each row; a tap's gradient is the sum of products with dY, row by row.
#include <vector>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

// Sum of products of rows, `pitch` apart in `a` and next to each other in `b`.
POET_WIDE float sum_of_products(const float* a, uint64_t pitch, const float* b, uint64_t rows, uint64_t columns) {
  constexpr uint64_t kShort = 8;
  Lanes lanes;
  for (uint64_t row = 0; row < rows; ++row, a += pitch, b += columns) {
    uint64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes)
      for (uint64_t lane = 0; lane < kLanes; ++lane) lanes.sums[lane] += a[i + lane] * b[i + lane];
    for (; i + kShort <= columns; i += kShort)
      for (uint64_t lane = 0; lane < kShort; ++lane) lanes.sums[lane] += a[i + lane] * b[i + lane];
    for (uint64_t lane = 0; i < columns; ++i, ++lane) lanes.sums[lane] += a[i] * b[i];
  }
  return lanes.total();
}

// No larger numbers in a window and no larger padded image: what is computed of them below then fits into 64 bits.
constexpr int64_t kLargestStep = int64_t{1} << 16;
constexpr uint64_t kLargestSide = uint64_t{1} << 31;

uint64_t positive(const Shape& list, size_t index, const char* name, int64_t least) {
  if (list.rank() != 2) throw Error(std::string("the attribute '") + name + "' must have two entries");
  const int64_t value = list.data()[index];
  if (value < least || value > kLargestStep)
    throw Error(std::string("the attribute '") + name + "' holds " + std::to_string(value) + ", which is out of range");
  return static_cast<uint64_t>(value);
}

struct Axis {
  uint64_t kernel;
  uint64_t stride;
  uint64_t dilation;
  uint64_t begin;

  uint64_t reach(uint64_t windows) const { return (windows - 1) * stride + (kernel - 1) * dilation + 1; }
};

class DepthwiseWeightGradient final : public Kernel {
 public:
  explicit DepthwiseWeightGradient(const NodeInfo& node) : rows_(read_axis(node, 0)), columns_(read_axis(node, 1)) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor input = context.input(1);
    const Shape& given = gradient.layout.shape;
    const Shape& image = input.layout.shape;
    const bool four = given.rank() == 4 && image.rank() == 4;
    if (!four || gradient.layout.dtype != kFloat || input.layout.dtype != kFloat ||
        given.data()[0] != image.data()[0] || image.data()[1] == 0 || given.data()[1] % image.data()[1] != 0)
      throw Error("a gradient of shape " + to_string(given) + " and an input of shape " + to_string(image) +
                  " are no depthwise convolution's, or not of float");
    const auto batch = static_cast<uint64_t>(image.data()[0]), channels = static_cast<uint64_t>(image.data()[1]);
    const auto filters = static_cast<uint64_t>(given.data()[1]);
    Shape shape(4);
    shape.data()[0] = given.data()[1];
    shape.data()[1] = 1;
    shape.data()[2] = static_cast<int64_t>(rows_.kernel);
    shape.data()[3] = static_cast<int64_t>(columns_.kernel);
    auto* d_w = static_cast<float*>(context.output(0, shape));
    std::fill_n(d_w, filters * rows_.kernel * columns_.kernel, 0.0F);
    if (given.data()[2] == 0 || given.data()[3] == 0) return;
    const auto* x = static_cast<const float*>(input.data);
    const auto* d_y = static_cast<const float*>(gradient.data);
    Plane plane(static_cast<uint64_t>(image.data()[2]), static_cast<uint64_t>(image.data()[3]),
                static_cast<uint64_t>(given.data()[2]), static_cast<uint64_t>(given.data()[3]), rows_, columns_);
    const uint64_t multiplier = filters / channels;
    for (uint64_t n = 0; n < batch; ++n)
      for (uint64_t channel = 0; channel < channels; ++channel) {
        plane.load(x + (n * channels + channel) * plane.pixels());
        for (uint64_t m = 0; m < multiplier; ++m) {
          const uint64_t filter = channel * multiplier + m;
          plane.add(d_w + filter * rows_.kernel * columns_.kernel, d_y + (n * filters + filter) * plane.windows());
        }
      }
  }

 private:
  // One channel of one image, padded.
  class Plane {
   public:
    Plane(uint64_t height, uint64_t width, uint64_t out_height, uint64_t out_width, const Axis& rows,
          const Axis& columns)
        : height_(height),
          width_(width),
          out_height_(out_height),
          out_width_(out_width),
          rows_(rows),
          columns_(columns),
          padded_height_(std::max(rows.begin + height, rows.reach(out_height))),
          part_((std::max(columns.begin + width, columns.reach(out_width)) + columns.stride - 1) / columns.stride),
          padded_(size(), 0.0F) {}

    uint64_t pixels() const { return height_ * width_; }
    uint64_t windows() const { return out_height_ * out_width_; }

    void load(const float* x) {
      for (uint64_t row = 0; row < height_; ++row) {
        float* to = padded_.data() + (row + rows_.begin) * part_ * columns_.stride;
        const float* from = x + row * width_;
        if (columns_.stride == 1) {
          std::copy_n(from, width_, to + columns_.begin);
          continue;
        }
        for (uint64_t column = 0; column < width_; ++column) {
          const uint64_t place = column + columns_.begin;
          to[place % columns_.stride * part_ + place / columns_.stride] = from[column];
        }
      }
    }

    void add(float* d_w, const float* d_y) const {
      for (uint64_t i = 0; i < rows_.kernel; ++i)
        for (uint64_t j = 0; j < columns_.kernel; ++j) {
          const uint64_t place = j * columns_.dilation;
          const uint64_t offset = place % columns_.stride * part_ + place / columns_.stride;
          const float* under = padded_.data() + i * rows_.dilation * part_ * columns_.stride + offset;
          const uint64_t pitch = rows_.stride * part_ * columns_.stride;
          d_w[i * columns_.kernel + j] += sum_of_products(under, pitch, d_y, out_height_, out_width_);
        }
    }

   private:
    uint64_t size() const {
      if (padded_height_ > kLargestSide || part_ * columns_.stride > kLargestSide)
        throw Error("a padded image of " + std::to_string(padded_height_) + " by " +
                    std::to_string(part_ * columns_.stride) + " is too large");
      return padded_height_ * part_ * columns_.stride;
    }

    uint64_t height_, width_, out_height_, out_width_;
    Axis rows_, columns_;
    uint64_t padded_height_;
    uint64_t part_;  // columns of the same place within a stride
    std::vector<float> padded_;
  };

  static Axis read_axis(const NodeInfo& node, size_t index) {
    return {positive(node.require_shape("kernel"), index, "kernel", 1),
            positive(node.require_shape("strides"), index, "strides", 1),
            positive(node.require_shape("dilations"), index, "dilations", 1),
            positive(node.require_shape("begins"), index, "begins", 0)};
  }

  Axis rows_, columns_;
};

std::unique_ptr<Kernel> create_depthwise(const NodeInfo& node) {
  return std::make_unique<DepthwiseWeightGradient>(node);
}

// The shape is in the model: nothing here could say more.
void infer_nothing(const Api&, const OrtShapeInferContext*) {}

}  // namespace

const OpDefinition kDepthwiseWeightGradient{
    "DepthwiseWeightGradient", 1, {kFloat}, Sharing::kNone, create_depthwise, infer_nothing};

}  // namespace poet
