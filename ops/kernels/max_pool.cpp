// The gradient of maximum pooling, in one pass and without a copy of the indices.
//
//   MaxPoolGradient(dY, places) -> dX
//       dX is of the shape that the integer list `shape` says, of zeros to which every element of dY is added, in
//       order, at its place: an int64 that counts through the whole of dX, as MaxPool's second output does.
#include <algorithm>

#include "kernels/kernel.h"

namespace poet {
namespace {

class MaxPoolGradient final : public Kernel {
 public:
  explicit MaxPoolGradient(const NodeInfo& node) : layout_(make_layout(kFloat, node.require_shape("shape"))) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor indices = context.input(1);
    if (gradient.layout.dtype != kFloat || indices.layout.dtype != kInt64 ||
        indices.layout.shape != gradient.layout.shape)
      throw Error("inputs of element types " + std::to_string(gradient.layout.dtype) + " and " +
                  std::to_string(indices.layout.dtype) + " and of shapes " + to_string(gradient.layout.shape) +
                  " and " + to_string(indices.layout.shape) + " must be float, int64 and alike");
    const auto* d_y = static_cast<const float*>(gradient.data);
    const auto* places = static_cast<const int64_t*>(indices.data);
    auto* d_x = static_cast<float*>(context.output(0, layout_.shape));
    const uint64_t size = layout_.bytes / sizeof(float), count = gradient.elements();
    std::fill_n(d_x, size, 0.0F);
    for (uint64_t i = 0; i < count; ++i) {
      if (static_cast<uint64_t>(places[i]) >= size)
        throw Error("place " + std::to_string(places[i]) + " is outside of an output of " + std::to_string(size) +
                    " elements");
      d_x[places[i]] += d_y[i];
    }
  }

 private:
  TensorLayout layout_;
};

}  // namespace

const OpDefinition kMaxPoolGradient{"MaxPoolGradient", 1, {kFloat}, Sharing::kNone, create<MaxPoolGradient>,
                                    infer_nothing};

}  // namespace poet
