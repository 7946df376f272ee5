// The gradient of a rectifier, in one pass.
//
//   RectifierGradient(dY, Y, slope) -> dX
//       dX is dY where Y is positive, slope * dY elsewhere, and 0 there if slope is 0, as in the training runtime: no
//       infinite dY comes through. Y may be the rectifier's input as well; all are of float, slope is one number. dX
//       may take dY's buffer.
#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

POET_WIDE void close(float* d_x, const float* d_y, const float* y, uint64_t count) {
  write_each(d_x, count, [=](uint64_t i) { return y[i] > 0 ? d_y[i] : 0.0F; });
}

POET_WIDE void leak(float* d_x, const float* d_y, const float* y, uint64_t count, float slope) {
  write_each(d_x, count, [=](uint64_t i) { return y[i] > 0 ? d_y[i] : slope * d_y[i]; });
}

class RectifierGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor output = context.input(1);
    const Tensor slope = context.input(2);
    for (const Tensor* tensor : {&gradient, &output, &slope})
      if (tensor->layout.dtype != kFloat)
        throw Error("an input is of element type " + std::to_string(tensor->layout.dtype) + ", but must be float");
    if (output.layout.shape != gradient.layout.shape || slope.layout.bytes != sizeof(float))
      throw Error("inputs of shapes " + to_string(gradient.layout.shape) + ", " + to_string(output.layout.shape) +
                  " and " + to_string(slope.layout.shape) + " must be two alike and one number");
    const auto* d_y = static_cast<const float*>(gradient.data);
    const auto* y = static_cast<const float*>(output.data);
    const float leaking = *static_cast<const float*>(slope.data);
    const uint64_t count = gradient.layout.bytes / sizeof(float);
    auto* d_x = static_cast<float*>(context.output(0, gradient.layout.shape));
    each_range(context.workers(), count, 1, [=](uint64_t first, uint64_t some) {
      if (leaking == 0) {
        close(d_x + first, d_y + first, y + first, some);
      } else {
        leak(d_x + first, d_y + first, y + first, some, leaking);
      }
    });
  }
};

}  // namespace

const OpDefinition kRectifierGradient{"RectifierGradient", 1, {kFloat}, Sharing::kAllowed, create<RectifierGradient>,
                                      infer_from_input};

}  // namespace poet
