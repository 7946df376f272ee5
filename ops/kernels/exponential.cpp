// The runtime's Exp, in place.
//
//   Exponentiate(x) -> y
//       y is e to the power of each x, in floats, and may take x's buffer: ONNX Runtime's planner gives an Exp another
//       one, though its kernel reads each number before it writes it.
#include "kernels/runtime_operator.h"

namespace poet {
namespace {

class Exponentiate final : public Kernel {
 public:
  explicit Exponentiate(const NodeInfo& node) : exp_(node, {"Exp", "", 13}, Attributes(node.api()), 1) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    if (x.layout.dtype != kFloat)
      throw Error("the input is of element type " + std::to_string(x.layout.dtype) + ", but must be float");
    auto* y = static_cast<float*>(context.output(0, x.layout.shape));
    if (x.elements() == 0) return;
    const Floats from{const_cast<float*>(static_cast<const float*>(x.data)), x.layout.shape};
    exp_.run(context, {&from}, {y, x.layout.shape});
  }

 private:
  const RuntimeOperator exp_;
};

}  // namespace

const OpDefinition kExponentiate{"Exponentiate",  1, {kFloat}, Sharing::kAllowed, create<Exponentiate>,
                                 infer_from_input};

}  // namespace poet
