// The images' gradient of a convolution over images of one to three dimensions.
//
//   ConvDataGradient(dY, W) -> dX
//       dY is [batch, filters, windows], W [filters, channels / group, kernel] and dX [batch, channels, `image`], all
//       float. `kernel`, `strides`, `dilations`, `begins` and `pixels` say how windows slide, `images` and `rows`
//       how many are taken at a time (window.h).
//
// In a group the columns of dX are the product of the transposed filters and dY, and each pixel the sum of what columns
// have for it. So does the runtime's ConvTranspose, image by image: the bits are the same where no image is cut into
// rows of windows. Small images make products so narrow that most of the time goes to reading the filters: several are
// taken together. The columns of a large one take as much as dX for each tap: some rows are taken at a time. Single
// pixels need no columns: their product is dX.
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/runtime_product.h"
#include "kernels/window.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

class ConvDataGradient final : public Kernel {
 public:
  explicit ConvDataGradient(const NodeInfo& node)
      : windows_(node),
        image_(require_image(node, windows_.dimensions())),
        groups_(std::max<uint64_t>(node.require_nonnegative("group"), 1)),
        strips_(node, windows_),
        product_(node, RuntimeProduct::Operator::kGemm, true, false, false) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0), weight = context.input(1);
    const Sizes sizes = read(gradient, weight);
    const Image& image = sizes.image;
    auto* const d_x = static_cast<float*>(context.output(0, joined(sizes.batch, image.channels, image_)));
    if (sizes.batch == 0 || image.channels == 0) return;
    if (sizes.filters == 0) {
      std::fill_n(d_x, sizes.batch * image.size(), 0.0F);
      return;
    }
    const uint64_t channels = image.channels / groups_, depth = channels * windows_.taps();
    const uint64_t filters = groups_ * sizes.filters, samples = strips_.most_samples(sizes.batch);
    if (depth + filters > kMostColumnFloats / samples)
      throw Error("columns of " + std::to_string(samples) + " pixels are too many");
    const bool are_images = strips_.are_images(sizes.batch), is_direct = are_images && windows_.are_pixels_of(image);
    const uint64_t turned = are_images ? 0 : filters * samples, made = is_direct ? 0 : depth * samples;
    const Workspace room(context.api(), (turned + made) * sizeof(float));
    auto* const d_y = static_cast<float*>(gradient.data);
    strips_.each(sizes.batch, [&](const Strip& strip) {
      const uint64_t seen = windows_.samples(strip);
      float* const rows = windows_.turned(context.workers(), filters, strip, d_y, 0, filters, room.floats());
      for (uint64_t group = 0; group < groups_; ++group) {
        const uint64_t filter = group * sizes.filters;  // first of the group
        float* const to = d_x + group * channels * image.pixels();
        float* const columns = is_direct ? to + strip.image * image.size() : room.floats() + turned;
        product_.run(context, Floats::of(static_cast<float*>(weight.data) + filter * depth, sizes.filters, depth),
                     Floats::of(rows + filter * seen, sizes.filters, seen), nullptr, Floats::of(columns, depth, seen));
        if (!is_direct) windows_.images(context.workers(), image, channels, strip, columns, seen, to);
      }
    });
  }

 private:
  struct Sizes {
    uint64_t batch, filters;  // filters are those of a group
    Image image;
  };

  Sizes read(const Tensor& d_y, const Tensor& weight) const {
    const Shape& given = d_y.layout.shape;
    const Shape& filters = weight.layout.shape;
    const auto size = [](const Shape& shape, size_t axis) { return static_cast<uint64_t>(shape.data()[axis]); };
    const Shape& kernel = windows_.kernel();
    const bool is_kernel =
        filters.rank() == given.rank() && std::equal(kernel.data(), kernel.data() + kernel.rank(), filters.data() + 2);
    if (!windows_.are_those_of(given) || !is_kernel || d_y.layout.dtype != kFloat || weight.layout.dtype != kFloat ||
        size(given, 1) != size(filters, 0) || size(given, 1) % groups_ != 0)
      throw Error("a gradient of shape " + to_string(given) + " and filters of shape " + to_string(filters) +
                  " are no convolution's of " + std::to_string(groups_) + " groups, or not of float");
    return {size(given, 0), size(given, 1) / groups_, windows_.image(size(filters, 1) * groups_, image_, 0)};
  }

  const Windows windows_;
  const Shape image_;
  const uint64_t groups_;
  const Strips strips_;
  const RuntimeProduct product_;
};

}  // namespace

const OpDefinition kConvDataGradient{"ConvDataGradient", 1, {kFloat}, Sharing::kNone, create<ConvDataGradient>,
                                     infer_nothing};

}  // namespace poet
