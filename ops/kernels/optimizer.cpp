// Optimizers that change parameters and their state in place.
//
//   UpdateSgd(gradient, rates, parameter, after...) -> updated
//   UpdateMomentum(gradient, rates, parameter, momentum, after...) -> updated
//   UpdateAdam(gradient, rates, parameter, first_moment, second_moment, after...) -> updated
//       update the parameter's elements from `offset` on, as many as the gradient has, and their state
//
// parameters/optimizer.cpp has the formulas, and says what `rates` are.
#include "parameters/optimizer.h"

#include <array>

#include "kernels/kernel.h"

namespace poet {
namespace {

Tensor require(const Context& context, size_t index) {
  const Tensor tensor = context.input(index);
  if (tensor.layout.dtype != kFloat)
    throw Error("input " + std::to_string(index) + " is of element type " + std::to_string(tensor.layout.dtype) +
                ", but must be float");
  return tensor;
}

// One optimizer: how many rates it has, its loop, and the inputs that this changes, in their order from kParameter on.
template <uint64_t kRates, auto kLoop, size_t... kChanged>
class Update final : public Kernel {
 public:
  explicit Update(const NodeInfo& node) : offset_(node.require_nonnegative("offset")) {}

  void compute(Context& context) override {
    const Tensor gradient = require(context, 0);
    const Tensor rates = require(context, 1);
    if (rates.elements() != kRates)
      throw Error("the rates have " + std::to_string(rates.elements()) + " elements, but must have " +
                  std::to_string(kRates));
    const uint64_t count = gradient.elements(), bytes = gradient.layout.bytes;
    const std::array<float*, sizeof...(kChanged)> parts{part(context, kChanged, count)...};
    require_apart({Memory{parts[kChanged - kParameter], bytes}..., gradient.memory(), rates.memory()}, parts.size());
    const auto* g = static_cast<const float*>(gradient.data);
    const auto* numbers = static_cast<const float*>(rates.data);
    each_range(context.workers(), count, 1, [&](uint64_t first, uint64_t some) {
      kLoop((parts[kChanged - kParameter] + first)..., g + first, some, numbers);
    });
    context.output_true();
  }

 private:
  static constexpr size_t kParameter = 2;

  // The elements of input `index` that `count` elements of a gradient change.
  float* part(const Context& context, size_t index, uint64_t count) const {
    const Tensor tensor = require(context, index);
    require_room(tensor, index, offset_, count);
    return static_cast<float*>(tensor.data) + offset_;
  }

  uint64_t offset_;
};

using UpdateSgd = Update<3, update_sgd, 2>;
using UpdateMomentum = Update<5, update_momentum, 2, 3>;
using UpdateAdam = Update<10, update_adam, 2, 3, 4>;

}  // namespace

const OpDefinition kUpdateSgd{"UpdateSgd", 1, {kBool}, Sharing::kNone, create<UpdateSgd>, infer_nothing};
const OpDefinition kUpdateMomentum{"UpdateMomentum", 1, {kBool}, Sharing::kNone, create<UpdateMomentum>, infer_nothing};
const OpDefinition kUpdateAdam{"UpdateAdam", 1, {kBool}, Sharing::kNone, create<UpdateAdam>, infer_nothing};

}  // namespace poet
