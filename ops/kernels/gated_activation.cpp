// A product whose one factor is activated, as of SwiGLU and GeGLU (Shazeer 2020, arxiv.org/abs/2002.05202), and its
// gradient.
//
//   GatedActivate(gate, up) -> y
//   GatedActivateGradient(dY, gate, up) -> (dGate, dUp)
//
// With the activation f that the integer `activation` names, 0 for gate * sigmoid(gate), 1 for GELU, gate * Phi(gate)
// with the normal distribution's Phi, and 2 for its approximation by a hyperbolic tangent:
//
// - y = f(gate) * up;
// - dGate = dY * up * f'(gate) and dUp = dY * f(gate).
//
// All are float and of one shape. dGate may take dY's buffer, dUp the gate's.
#include "kernels/activations.h"
#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

template <typename Activation>
inline void write(float* y, const float* gate, const float* up, uint64_t count) {
  write_each(y, count, [=](uint64_t i) { return Activation::value(gate[i]) * up[i]; });
}

template <typename Activation>
inline void write_gradients(float* d_gate, float* d_up, const float* d_y, const float* gate, const float* up,
                            uint64_t count) {
  uint64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    float gates[kGroup], ups[kGroup];
    for (uint64_t k = 0; k < kGroup; ++k) {
      const Activated made = Activation::both(gate[i + k]);
      gates[k] = d_y[i + k] * up[i + k] * made.slope;
      ups[k] = d_y[i + k] * made.value;
    }
    for (uint64_t k = 0; k < kGroup; ++k) d_gate[i + k] = gates[k];
    for (uint64_t k = 0; k < kGroup; ++k) d_up[i + k] = ups[k];
  }
  for (; i < count; ++i) {
    const Activated made = Activation::both(gate[i]);
    const float by = d_y[i];
    d_gate[i] = by * up[i] * made.slope;
    d_up[i] = by * made.value;
  }
}

using Write = void (*)(float*, const float*, const float*, uint64_t);
using WriteGradients = void (*)(float*, float*, const float*, const float*, const float*, uint64_t);

POET_WIDE void write_silu(float* y, const float* gate, const float* up, uint64_t count) {
  write<Silu>(y, gate, up, count);
}
POET_WIDE void write_gelu(float* y, const float* gate, const float* up, uint64_t count) {
  write<Gelu>(y, gate, up, count);
}
POET_WIDE void write_gelu_tanh(float* y, const float* gate, const float* up, uint64_t count) {
  write<GeluTanh>(y, gate, up, count);
}
POET_WIDE void silu_gradients(float* d_gate, float* d_up, const float* d_y, const float* gate, const float* up,
                              uint64_t count) {
  write_gradients<Silu>(d_gate, d_up, d_y, gate, up, count);
}
POET_WIDE void gelu_gradients(float* d_gate, float* d_up, const float* d_y, const float* gate, const float* up,
                              uint64_t count) {
  write_gradients<Gelu>(d_gate, d_up, d_y, gate, up, count);
}
POET_WIDE void gelu_tanh_gradients(float* d_gate, float* d_up, const float* d_y, const float* gate, const float* up,
                                   uint64_t count) {
  write_gradients<GeluTanh>(d_gate, d_up, d_y, gate, up, count);
}

constexpr Write kWrites[kActivations] = {write_silu, write_gelu, write_gelu_tanh};
constexpr WriteGradients kGradients[kActivations] = {silu_gradients, gelu_gradients, gelu_tanh_gradients};

const float* floats_of(const Context& context, size_t index) {
  return static_cast<const float*>(context.input(index).data);
}

class GatedActivate final : public Kernel {
 public:
  explicit GatedActivate(const NodeInfo& node) : write_(kWrites[activation_of(node)]) {}

  void compute(Context& context) override {
    const Tensor first = read_floats_alike(context, 2);
    const float* const gate = floats_of(context, 0);
    const float* const up = floats_of(context, 1);
    auto* const y = static_cast<float*>(context.output(0, first.layout.shape));
    each_range(context.workers(), first.elements(), kActivationFloats,
               [&](uint64_t begin, uint64_t count) { write_(y + begin, gate + begin, up + begin, count); });
  }

 private:
  const Write write_;
};

class GatedActivateGradient final : public Kernel {
 public:
  explicit GatedActivateGradient(const NodeInfo& node) : write_(kGradients[activation_of(node)]) {}

  void compute(Context& context) override {
    const Tensor first = read_floats_alike(context, 3);
    const float* const d_y = floats_of(context, 0);
    const float* const gate = floats_of(context, 1);
    const float* const up = floats_of(context, 2);
    auto* const d_gate = static_cast<float*>(context.output(0, first.layout.shape));
    auto* const d_up = static_cast<float*>(context.output(1, first.layout.shape));
    each_range(context.workers(), first.elements(), kActivationFloats, [&](uint64_t begin, uint64_t count) {
      write_(d_gate + begin, d_up + begin, d_y + begin, gate + begin, up + begin, count);
    });
  }

 private:
  const WriteGradients write_;
};

}  // namespace

const OpDefinition kGatedActivate{"GatedActivate", 1, {kFloat}, Sharing::kNone, create<GatedActivate>,
                                  infer_from_input};
const OpDefinition kGatedActivateGradient{
    "GatedActivateGradient", 2, {kFloat, kFloat}, Sharing::kAllowedTwice, create<GatedActivateGradient>,
    infer_two_from_input};

}  // namespace poet
