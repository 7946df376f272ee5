// The filters' gradient of a convolution of images of two dimensions.
//
//   ConvWeightGradient(dY, X) -> dW
//       X is [batch, channels, height, width], dY [batch, filters, rows, columns] and dW
//       [filters, channels / group, kernel], all float. `kernel`, `strides`, `dilations`, `begins` and `pixels` say how
//       windows slide (window.h); `columns` is how many of their rows are made at a time.
//
// In a group dW is the product of dY, a row for each filter, and the transposed columns of X: the runtime's own Gemm
// makes it for a few rows of the columns after the others, as all of them take as much as X for each tap. Threads make
// columns, and turn dY where there are several images, row by row.
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/runtime_product.h"
#include "kernels/window.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

class ConvWeightGradient final : public Kernel {
 public:
  explicit ConvWeightGradient(const NodeInfo& node)
      : windows_(node),
        kernel_(node.require_shape("kernel")),
        groups_(std::max<uint64_t>(node.require_nonnegative("group"), 1)),
        at_once_(std::max<uint64_t>(node.require_nonnegative("columns"), 1)),
        product_(node, RuntimeProduct::Operator::kGemm, false, true, false) {}

  void compute(Context& context) override {
    const Sizes sizes = read(context.input(0), context.input(1));
    auto* const d_w = static_cast<float*>(context.output(0, sizes.made));
    const uint64_t depth = sizes.channels * windows_.taps(), most = std::min(at_once_, depth);
    if (sizes.samples == 0 || sizes.filters == 0 || depth == 0) {
      std::fill_n(d_w, groups_ * sizes.filters * depth, 0.0F);
      return;
    }
    if (most > kMostColumnFloats / (sizes.samples + sizes.filters))
      throw Error(std::to_string(most) + " columns of " + std::to_string(sizes.samples) + " pixels are too many");
    const uint64_t turned = sizes.batch > 1 ? groups_ * sizes.filters * sizes.samples : 0;
    const bool is_whole = most == depth;  // a group's product is a part of dW as it is
    const uint64_t apart = is_whole ? 0 : sizes.filters * most;
    const Workspace room(context.api(), (turned + most * sizes.samples + apart) * sizeof(float));
    float* const columns = room.floats() + turned;
    float* const product = columns + most * sizes.samples;
    const uint64_t filters = groups_ * sizes.filters;
    float* const d_y = windows_.turned(context.workers(), filters, sizes.batch,
                                       static_cast<float*>(context.input(0).data), 0, filters, room.floats());
    const auto* const x = static_cast<const float*>(context.input(1).data);
    for (uint64_t group = 0; group < groups_; ++group)
      for (uint64_t first = 0; first < depth; first += most) {
        const uint64_t count = std::min(most, depth - first);
        windows_.columns(context.workers(), sizes.image, sizes.batch, x, group * depth + first, count, columns);
        float* const whole = d_w + group * sizes.filters * depth;
        product_.run(context, Floats::of(d_y + group * sizes.filters * sizes.samples, sizes.filters, sizes.samples),
                     Floats::of(columns, count, sizes.samples), nullptr,
                     Floats::of(is_whole ? whole : product, sizes.filters, count));
        for (uint64_t filter = 0; !is_whole && filter < sizes.filters; ++filter)
          std::copy_n(product + filter * count, count, whole + filter * depth + first);
      }
  }

 private:
  struct Sizes {
    uint64_t batch, filters, channels, samples;  // filters and channels are those of a group
    Image image;
    Shape made;
  };

  Sizes read(const Tensor& d_y, const Tensor& x) const {
    const Shape& given = d_y.layout.shape;
    const Shape& image = x.layout.shape;
    const auto size = [](const Shape& shape, size_t axis) { return static_cast<uint64_t>(shape.data()[axis]); };
    const bool four = given.rank() == 4 && image.rank() == 4 && kernel_.rank() == 2;
    if (!four || d_y.layout.dtype != kFloat || x.layout.dtype != kFloat || size(given, 0) != size(image, 0) ||
        size(given, 1) % groups_ != 0 || size(image, 1) % groups_ != 0 || size(given, 2) != windows_.height() ||
        size(given, 3) != windows_.width())
      throw Error("a gradient of shape " + to_string(given) + " and images of shape " + to_string(image) +
                  " are no convolution's of " + std::to_string(groups_) + " groups, or not of float");
    const uint64_t filters = size(given, 1), channels = size(image, 1) / groups_;
    return {size(image, 0),
            filters / groups_,
            channels,
            size(image, 0) * windows_.pixels(),
            {size(image, 1), size(image, 2), size(image, 3)},
            Floats::of(nullptr, filters, channels, kernel_.data()[0], kernel_.data()[1]).shape};
  }

  const Windows windows_;
  const Shape kernel_;
  const uint64_t groups_, at_once_;
  const RuntimeProduct product_;
};

}  // namespace

const OpDefinition kConvWeightGradient{"ConvWeightGradient", 1, {kFloat}, Sharing::kNone, create<ConvWeightGradient>,
                                       infer_nothing};

}  // namespace poet
