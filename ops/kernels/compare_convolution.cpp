// CompareConvolution(any) -> same: whether a convolution, or a gradient of it, by panels of filters (filter_panels.h)
// has the bits of the operator on all of them, as ComparePanels does for matrices (compare_panels.cpp).
//
// `product` says which: 0 the convolution, 1 the gradient of its images, 2 that of the filters. Besides the attributes
// of ConvStored there are `image`, the shape of x, and `ends`, the padding behind it. `images` and `rows`:
// how many windows the whole gradient takes at a time (window.h); `biased`: a Conv adds a bias.
#include "kernels/drawn_numbers.h"
#include "kernels/filter_panels.h"
#include "process/heap.h"

namespace poet {
namespace {

enum class Product : uint64_t { kConvolution = 0, kImage = 1, kFilters = 2 };

std::vector<int64_t> joined(std::vector<int64_t> first, const std::vector<int64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The convolution, or the product that makes columns of its images' gradient.
RuntimeOperator whole_operator(const NodeInfo& node, Product product, bool is_biased) {
  Attributes attributes(node.api());
  if (product != Product::kConvolution) {
    attributes.add("transA", int64_t{1});
    attributes.add("transB", int64_t{0});
    attributes.add("alpha", 1.0F);
    attributes.add("beta", 1.0F);
    return RuntimeOperator(node, {"Gemm", "", 13}, attributes, 2);
  }
  attributes.add("kernel_shape", node.require_ints("kernel"));
  attributes.add("strides", node.require_ints("strides"));
  attributes.add("dilations", node.require_ints("dilations"));
  attributes.add("pads", joined(node.require_ints("begins"), node.require_ints("ends")));
  attributes.add("group", int64_t{1});
  return RuntimeOperator(node, {"Conv", "", 11}, attributes, is_biased ? 3 : 2);
}

class CompareConvolution final : public Kernel {
 public:
  explicit CompareConvolution(const NodeInfo& node)
      : filters_(node),
        given_(node.require_shape("image")),
        product_(static_cast<Product>(node.require_nonnegative("product"))),
        strips_(node, filters_.windows),
        is_biased_(node.require_nonnegative("biased") != 0),
        whole_(whole_operator(node, product_, is_biased_)),
        convolved_(node, filters_),
        spread_(node, filters_),
        weight_(node, filters_) {
    if (given_.rank() != 2 + filters_.windows.dimensions() ||
        panels().columns() != image().channels * filters_.windows.taps())
      throw Error("images of shape " + to_string(given_) + " and such filters make no convolution");
    whole_shape_ = joined(panels().rows(), image().channels, filters_.windows.kernel());
  }

  void compute(Context& context) override {
    give_freed_memory_back();  // before a process trains that has no room for it then
    bool are = false;
    if (product_ == Product::kConvolution) are = compare_convolutions(context);
    if (product_ == Product::kImage) are = compare_images(context);
    if (product_ == Product::kFilters) are = compare_filters(context);
    *static_cast<bool*>(context.output(0, Floats::of(nullptr, 1).shape)) = are;
  }

 private:
  static constexpr uint64_t kMatrix = 1, kImages = 2, kGradient = 3, kBias = 4;  // salts

  const Panels& panels() const { return filters_.panels; }
  uint64_t batch() const { return size(0); }
  Image image() const { return filters_.windows.image(size(1), given_, 2); }
  uint64_t size(size_t axis) const { return static_cast<uint64_t>(given_.data()[axis]); }
  uint64_t columns() const { return panels().columns() * filters_.windows.pixels(); }  // of an image

  void draw(Panel panel, float* to) const {
    const uint64_t first = panel.first * panels().columns();
    for (uint64_t i = 0; i < panel.rows * panels().columns(); ++i) to[i] = number(first + i, kMatrix);
  }

  bool compare_convolutions(const Context& context) const {
    Numbers bias = numbers(panels().rows(), kBias);
    Numbers expected(batch() * filters_.made());
    {
      Numbers x = numbers(batch() * image().size(), kImages),
              matrix = numbers(panels().rows() * panels().columns(), kMatrix);
      const Floats added = Floats::of(bias.data(), bias.size()), images{x.data(), given_},
                   all{matrix.data(), whole_shape_};
      whole_.run(context, {&images, &all, is_biased_ ? &added : nullptr},
                 {expected.data(), filters_.made_shape(batch())});
    }
    Numbers found(expected.size()), matrix(panels().most_rows() * panels().columns());
    const Numbers x = numbers(batch() * image().size(), kImages);
    Numbers looked(batch() * columns());
    convolved_.columns(context, image(), batch(), x.data(), looked.data());
    panels().each([&](Panel panel) {
      draw(panel, matrix.data());
      convolved_.run(context, panel, matrix.data(), looked.data(), batch(), is_biased_ ? bias.data() : nullptr,
                     found.data());
    });
    return are_same(expected.data(), found.data(), found.size());
  }

  // The columns of the images' gradient are compared: the sums of their taps are made of them in one way.
  bool compare_images(const Context& context) const {
    const uint64_t depth = panels().columns(), all = batch() * filters_.windows.pixels();
    Numbers d_y = numbers(batch() * filters_.made(), kGradient), found(depth * all), spare(panels().rows() * all);
    {
      Numbers matrix(panels().most_rows() * depth);
      panels().each([&](Panel panel) {
        draw(panel, matrix.data());
        spread_.run(context, panel, matrix.data(), d_y.data(), batch(), spare.data(), found.data());
      });
    }
    Numbers matrix = numbers(panels().rows() * depth, kMatrix), expected(depth * strips_.most_samples(batch()));
    const Floats left = Floats::of(matrix.data(), panels().rows(), depth);
    bool are = true;
    strips_.each(batch(), [&](const Strip& strip) {
      const uint64_t seen = filters_.windows.samples(strip), before = filters_.windows.samples_before(strip);
      float* const rows = filters_.turned(context, {0, panels().rows()}, strip, d_y.data(), spare.data());
      const Floats right = Floats::of(rows, panels().rows(), seen);
      whole_.run(context, {&left, &right}, Floats::of(expected.data(), depth, seen));
      for (uint64_t row = 0; row < depth; ++row)
        are = are && are_same(&expected[row * seen], &found[row * all + before], seen);
    });
    return are;
  }

  bool compare_filters(const Context& context) const {
    const uint64_t depth = panels().columns();
    const Numbers x = numbers(batch() * image().size(), kImages);
    Numbers d_y = numbers(batch() * filters_.made(), kGradient), looked(batch() * columns());
    Numbers expected(panels().rows() * depth), spare(panels().rows() * strips_.most_samples(batch()));
    weight_.columns(context, image(), batch(), x.data(), looked.data());
    weight_.run(context, {0, panels().rows()}, d_y.data(), looked.data(), batch(), spare.data(), expected.data());
    Numbers found(panels().most_piece_rows() * depth);
    bool are = true;
    const auto compare = [&](const Piece& piece) {
      weight_.run(context, piece.rows, d_y.data(), looked.data(), batch(), spare.data(), found.data());
      const uint64_t first = piece.first - piece.rows.first * depth;
      are = are && are_same(&expected[piece.first], &found[first], piece.count);
    };
    panels().each([&](Panel panel) { panels().each_piece(panel, compare); });
    return are;
  }

  const Filters filters_;
  const Shape given_;
  const Product product_;
  const Strips strips_;
  const bool is_biased_;
  const RuntimeOperator whole_;
  const ConvolvedPanels convolved_;
  const SpreadPanels spread_;
  const WeightPanels weight_;
  Shape whole_shape_;
};

}  // namespace

const OpDefinition kCompareConvolution{"CompareConvolution",       1,         {kBool}, Sharing::kNone,
                                       create<CompareConvolution>, infer_flag};

}  // namespace poet
