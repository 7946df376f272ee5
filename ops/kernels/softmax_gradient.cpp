// The gradient of a softmax over the last dimension, in one pass.
//
//   SoftmaxGradient(dY, Y) -> dX
//
// dX = Y * (dY - sum(dY * Y)), with the sum over a row, in lanes of float for a while and beyond that in double. All
// are float and of one shape. dX may take dY's buffer.
#include "kernels/kernel.h"
#include "kernels/softmax_rows.h"

namespace poet {
namespace {

class SoftmaxGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = read_floats_alike(context, 2);
    const auto* const d_y = static_cast<const float*>(gradient.data);
    const auto* const y = static_cast<const float*>(context.input(1).data);
    auto* const d_x = static_cast<float*>(context.output(0, gradient.layout.shape));
    if (gradient.elements() == 0) return;
    const uint64_t columns = row_width(gradient);
    each_item(context.workers(), gradient.elements() / columns, columns, [&](uint64_t row) {
      const uint64_t at = row * columns;
      softmax_gradient_row(d_x + at, y + at, d_y + at, columns, 1.0F, nullptr);
    });
  }
};

}  // namespace

const OpDefinition kSoftmaxGradient{"SoftmaxGradient", 1, {kFloat}, Sharing::kAllowed, create<SoftmaxGradient>,
                                    infer_from_input};

}  // namespace poet
