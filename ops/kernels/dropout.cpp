// Dropout whose random numbers follow from its seed and the number of the run alone: the kernel keeps nothing, so a
// training run goes on from any step, and a node that is run again within a step drops the same elements.
//
//   CountedDropout(X, ratio, runs) -> (Y, mask)
//       Y is X / (1 - ratio) where the mask is true, zero elsewhere. ratio is one float of at least 0 and below 1;
//       runs, one int64, counts the runs before this one.
//
// ONNX Runtime's own Dropout makes a generator of seed + run (onnxruntime/core/providers/cpu/nn/dropout_op.h of
// github.com/microsoft/onnxruntime, v1.19.2) whose first number grows by 8e-6 from one run to the next: it drops the
// first element of a tensor in a hundred thousand runs on end, or never. Those of Philox are independent.
#include "kernels/kernel.h"
#include "kernels/philox.h"

namespace poet {
namespace {

template <typename T>
void drop(const Context& context, T* y, bool* mask, const T* x, uint64_t count, float ratio, uint64_t seed,
          uint64_t runs) {
  const auto kept = static_cast<T>(1.0F - ratio);
  each_drawn(context.workers(), count, seed, runs, [=](const Drawn& drawn, uint64_t first, uint64_t some) {
    for (uint64_t i = 0; i < some; ++i) {
      mask[first + i] = even(drawn[i]) >= ratio;
      y[first + i] = static_cast<T>(mask[first + i]) * x[first + i] / kept;
    }
  });
}

class CountedDropout final : public Kernel {
 public:
  explicit CountedDropout(const NodeInfo& node) : seed_(static_cast<uint64_t>(node.require_int("seed"))) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    const float ratio = *read_floats(context, 1, 1);
    const auto runs = static_cast<uint64_t>(context.input_token(2));
    if (x.layout.dtype != kFloat && x.layout.dtype != kDouble)
      throw Error("input 0 is of element type " + std::to_string(x.layout.dtype) + ", but must be float or double");
    if (!(ratio >= 0 && ratio < 1))
      throw Error("the ratio is " + std::to_string(ratio) + ", but must be at least 0 and below 1");
    void* const y = context.output(0, x.layout.shape);
    auto* const mask = static_cast<bool*>(context.output(1, x.layout.shape));
    const uint64_t count = x.elements();
    if (x.layout.dtype == kFloat)
      drop(context, static_cast<float*>(y), mask, static_cast<const float*>(x.data), count, ratio, seed_, runs);
    else
      drop(context, static_cast<double*>(y), mask, static_cast<const double*>(x.data), count, ratio, seed_, runs);
  }

 private:
  uint64_t seed_;
};

}  // namespace

const OpDefinition kCountedDropout{"CountedDropout",     2, {kUndefined, kBool}, Sharing::kNone, create<CountedDropout>,
                                   infer_type_from_input};

}  // namespace poet
