// Linear layers on matrices that live in a store: neither the matrix nor its gradient is ever whole in memory.
//
//   LinearStored(x, handle, bias?, after...) -> y
//       x times the matrix, or, where `transposed` is 1, the transposed matrix; the bias is there where `biased` is 1
//   LinearStoredBackwardSgd, ...Momentum, ...Adam(dY, x, rates, handle, after...) -> dX, updated
//       the gradients of such a product, with the one of x made and the one of the matrix used in an update in the
//       store, to the bits of UpdateSgd and its like (optimizer.cpp)
//
// Tensors are float. `matrix` is the shape of the stored one and `panel_rows` how many rows of it are taken at a time
// (panels.h). Each is read once: its update changes what was read.
#include "kernels/linear.h"
#include "kernels/stored_panels.h"

namespace poet {
namespace {

class LinearStored final : public Kernel {
 public:
  explicit LinearStored(const NodeInfo& node) : product_(node) {}

  void compute(Context& context) override {
    const Linear& linear = product_.linear;
    const Tensor x = context.input(0);
    const uint64_t samples = Linear::samples(x, linear.width_in(), "x");
    const StoredPanels stored(context, 1, linear.panels);
    const auto operands = product_.operands(context, x, samples, 2);
    const Linear::Room room(context, linear.panels, samples, false);
    product_.run(context, operands, room, [&](Panel panel) { stored.read(panel, room.matrix); });
  }

 private:
  const LinearProduct product_;
};

template <class Kind>
class LinearStoredBackward final : public Kernel {
 public:
  explicit LinearStoredBackward(const NodeInfo& node)
      : linear_(node),
        across_(node, linear_.panels, false),
        along_(node, linear_.panels, false),
        gradient_(node, linear_.panels) {}

  void compute(Context& context) override {
    const Tensor d_y = context.input(0), x = context.input(1);
    const uint64_t samples = Linear::samples(d_y, linear_.width_out(), "dY");
    if (Linear::samples(x, linear_.width_in(), "x") != samples)
      throw Error("x has other samples than dY's " + std::to_string(samples));
    const float* const rates = read_floats(context, 2, Kind::kRates);
    const StoredPanels stored(context, 3, linear_.panels);
    float* const d_x = Linear::output(context, d_y.layout.shape, linear_.width_in());
    context.output_true(1);
    const Linear::Room room(context, linear_.panels, samples, true);
    float* const left = Linear::floats(linear_.is_transposed ? d_y : x);
    float* const right = Linear::floats(linear_.is_transposed ? x : d_y);
    const auto use = [&](Panel panel) {
      if (linear_.is_transposed) {
        float* const part = columns_of(linear_.panels, panel, left, samples, room.columns);
        along_.run(context, panel, part, samples, room.matrix, nullptr, d_x);
      } else {
        across_.run(context, panel, right, samples, room.matrix, nullptr, d_x, room.columns);
      }
    };
    stored.update<Kind>(rates, room.matrix, room.gradient, use, [&](Panel rows) {
      float* const part = columns_of(linear_.panels, rows, left, samples, room.columns);
      gradient_.run(context, rows, part, right, samples, room.gradient);
    });
  }

 private:
  const Linear linear_;
  const AcrossPanels across_;
  const AlongPanels along_;
  const GradientPanels gradient_;
};

template <class K>
constexpr OpDefinition linear_backward(const char* name) {
  return {name, 2, {kFloat, kBool}, Sharing::kNone, create<K>, infer_nothing};
}

}  // namespace

const OpDefinition kLinearStored{"LinearStored", 1, {kFloat}, Sharing::kNone, create<LinearStored>, infer_nothing};
const OpDefinition kLinearStoredBackwardSgd = linear_backward<LinearStoredBackward<Sgd>>("LinearStoredBackwardSgd");
const OpDefinition kLinearStoredBackwardMomentum =
    linear_backward<LinearStoredBackward<Momentum>>("LinearStoredBackwardMomentum");
const OpDefinition kLinearStoredBackwardAdam = linear_backward<LinearStoredBackward<Adam>>("LinearStoredBackwardAdam");

}  // namespace poet
