// The filters' gradient of a convolution of images of one to three dimensions.
//
//   ConvWeightGradient(dY, X) -> dW
//       X is [batch, channels, image], dY [batch, filters, windows] and dW [filters, channels / group, kernel], all
//       float. `kernel`, `strides`, `dilations`, `begins` and `pixels` say how windows slide, `images` and `rows` how
//       many are taken at a time (window.h); `columns` is how many rows of their columns are made at a time.
//
// In a group dW is the product of dY, a row for each filter, and the transposed columns of X. Columns of all windows
// take as much as X for each tap. So the runtime's own Gemm makes it for a few windows after the others, and adds up;
// where these few are many for so many channels, it makes a few columns of dW after the others. Threads make columns,
// and copy dY where windows are not all of one image.
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
        groups_(std::max<uint64_t>(node.require_nonnegative("group"), 1)),
        at_once_(std::max<uint64_t>(node.require_nonnegative("columns"), 1)),
        strips_(node, windows_),
        first_(node, RuntimeProduct::Operator::kGemm, false, true, false),
        next_(node, RuntimeProduct::Operator::kGemm, false, true, true) {}

  void compute(Context& context) override {
    const Sizes sizes = read(context.input(0), context.input(1));
    auto* const d_w = static_cast<float*>(context.output(0, sizes.made));
    const uint64_t depth = sizes.channels * windows_.taps(), most = std::min(at_once_, depth);
    const uint64_t filters = groups_ * sizes.filters;
    if (sizes.batch == 0 || sizes.filters == 0 || depth == 0) {
      std::fill_n(d_w, filters * depth, 0.0F);
      return;
    }
    const uint64_t samples = strips_.most_samples(sizes.batch);
    if (most > kMostColumnFloats / (samples + sizes.filters) || sizes.filters > kMostColumnFloats / samples)
      throw Error(std::to_string(most) + " columns of " + std::to_string(samples) + " pixels are too many");
    const bool are_images = strips_.are_images(sizes.batch);
    const bool is_direct = are_images && windows_.are_pixels_of(sizes.image);  // X has the columns as they are
    const bool is_whole = most == depth;                                       // a group's product is a part of dW
    const uint64_t turned = are_images ? 0 : sizes.filters * samples, made = is_direct ? 0 : most * samples;
    const uint64_t apart = is_whole ? 0 : sizes.filters * most;
    const Workspace room(context.api(), (turned + made + apart) * sizeof(float));
    float* const columns = room.floats() + turned;
    auto* const d_y = static_cast<float*>(context.input(0).data);
    auto* const x = static_cast<float*>(context.input(1).data);
    for (uint64_t group = 0; group < groups_; ++group)
      for (uint64_t first = 0; first < depth; first += most) {
        const uint64_t count = std::min(most, depth - first), row = group * depth + first;
        float* const whole = d_w + group * sizes.filters * depth;
        const Floats product = Floats::of(is_whole ? whole : columns + made, sizes.filters, count);
        strips_.each(sizes.batch, [&](const Strip& strip) {
          const uint64_t seen = windows_.samples(strip);
          float* const rows = windows_.turned(context.workers(), filters, strip, d_y, group * sizes.filters,
                                              sizes.filters, room.floats());
          if (!is_direct) windows_.columns(context.workers(), sizes.image, strip, x, row, count, columns);
          float* const under = is_direct ? x + strip.image * sizes.image.size() + row * windows_.pixels() : columns;
          const bool begins = strip.image == 0 && strip.row == 0;
          (begins ? first_ : next_)
              .run(context, Floats::of(rows, sizes.filters, seen), Floats::of(under, count, seen),
                   begins ? nullptr : &product, product);
        });
        for (uint64_t filter = 0; !is_whole && filter < sizes.filters; ++filter)
          std::copy_n(columns + made + filter * count, count, whole + filter * depth + first);
      }
  }

 private:
  struct Sizes {
    uint64_t batch, filters, channels;  // filters and channels are those of a group
    Image image;
    Shape made;
  };

  Sizes read(const Tensor& d_y, const Tensor& x) const {
    const Shape& given = d_y.layout.shape;
    const Shape& image = x.layout.shape;
    const auto size = [](const Shape& shape, size_t axis) { return static_cast<uint64_t>(shape.data()[axis]); };
    if (!windows_.are_those_of(given) || image.rank() != given.rank() || d_y.layout.dtype != kFloat ||
        x.layout.dtype != kFloat || size(given, 0) != size(image, 0) || size(given, 1) % groups_ != 0 ||
        size(image, 1) % groups_ != 0)
      throw Error("a gradient of shape " + to_string(given) + " and images of shape " + to_string(image) +
                  " are no convolution's of " + std::to_string(groups_) + " groups, or not of float");
    const uint64_t filters = size(given, 1), channels = size(image, 1) / groups_;
    return {size(image, 0), filters / groups_, channels, windows_.image(size(image, 1), image, 2),
            joined(filters, channels, windows_.kernel())};
  }

  const Windows windows_;
  const uint64_t groups_, at_once_;
  const Strips strips_;
  const RuntimeProduct first_, next_;
};

}  // namespace

const OpDefinition kConvWeightGradient{"ConvWeightGradient", 1, {kFloat}, Sharing::kNone, create<ConvWeightGradient>,
                                       infer_nothing};

}  // namespace poet
