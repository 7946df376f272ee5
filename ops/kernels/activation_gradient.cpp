// The gradient of an activation, in one pass.
//
//   ActivationGradient(dY, X) -> dX
//   ActivationGradient(dY, X, B) -> dX
//
// dX = dY * f'(X), or dY * f'(X + B) where the integer `biased` is 1, with the f that `activation` names
// (activations.h) and one number of B for each column of X. All are float. dX may take dY's buffer.
#include "kernels/activations.h"
#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

using Write = void (*)(float*, const float*, const float*, const float*, uint64_t);

template <typename Activation>
inline void write(float* d_x, const float* d_y, const float* x, const float* bias, uint64_t count) {
  if (bias == nullptr)
    write_each(d_x, count, [=](uint64_t i) { return d_y[i] * Activation::both(x[i]).slope; });
  else
    write_each(d_x, count, [=](uint64_t i) { return d_y[i] * Activation::both(x[i] + bias[i]).slope; });
}

POET_WIDE void write_silu(float* d_x, const float* d_y, const float* x, const float* bias, uint64_t count) {
  write<Silu>(d_x, d_y, x, bias, count);
}
POET_WIDE void write_gelu(float* d_x, const float* d_y, const float* x, const float* bias, uint64_t count) {
  write<Gelu>(d_x, d_y, x, bias, count);
}
POET_WIDE void write_gelu_tanh(float* d_x, const float* d_y, const float* x, const float* bias, uint64_t count) {
  write<GeluTanh>(d_x, d_y, x, bias, count);
}

constexpr Write kWrites[kActivations] = {write_silu, write_gelu, write_gelu_tanh};

class ActivationGradient final : public Kernel {
 public:
  explicit ActivationGradient(const NodeInfo& node)
      : write_(kWrites[activation_of(node)]), is_biased_(node.require_nonnegative("biased") != 0) {}

  void compute(Context& context) override {
    const Tensor gradient = read_floats_alike(context, 2);
    const auto* const d_y = static_cast<const float*>(gradient.data);
    const auto* const x = static_cast<const float*>(context.input(1).data);
    const float* const bias = is_biased_ ? bias_of(context, gradient.layout.shape) : nullptr;
    auto* const d_x = static_cast<float*>(context.output(0, gradient.layout.shape));
    const uint64_t count = gradient.elements();
    if (count == 0) return;
    const uint64_t columns = is_biased_ ? row_width(gradient) : 1;
    each_range(context.workers(), count / columns, columns * kActivationFloats, [&](uint64_t first, uint64_t rows) {
      const uint64_t begin = first * columns, end = begin + rows * columns, some = is_biased_ ? columns : rows;
      for (uint64_t i = begin; i < end; i += some) write_(d_x + i, d_y + i, x + i, bias, some);
    });
  }

 private:
  static const float* bias_of(const Context& context, const Shape& shape) {
    const Tensor bias = context.input(2);
    if (bias.layout.dtype != kFloat || bias.layout.shape != Shape::of(shape.last()))
      throw Error("the bias, " + described(bias) + ", must have one float for each column of shape " +
                  to_string(shape));
    return static_cast<const float*>(bias.data);
  }

  const Write write_;
  const bool is_biased_;
};

}  // namespace

const OpDefinition kActivationGradient{"ActivationGradient", 1, {kFloat}, Sharing::kAllowed, create<ActivationGradient>,
                                       infer_from_input};

}  // namespace poet
