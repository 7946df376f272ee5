// Optimizers that change parameters and their state in place.
//
//   UpdateSgd(gradient, rates, parameter, after...) -> updated
//   UpdateMomentum(gradient, rates, parameter, momentum, after...) -> updated
//   UpdateAdam(gradient, rates, parameter, first_moment, second_moment, after...) -> updated
//       update the parameter's elements from `offset` on, as many as the gradient has, and their state
//   UpdateRowsSgd(gradient, rates, parameter, indices, after...) -> updated, and so on
//       update a whole table where the gradient has the rows that the indices name, and is zero elsewhere: the bits are
//       those of a whole gradient, summed as AccumulateRows does, which is never in memory
//
// parameters/optimizer.cpp has the formulas, and says what `rates` are.
#include "parameters/optimizer.h"

#include <array>

#include "kernels/kernel.h"
#include "kernels/rows.h"

namespace poet {
namespace {

constexpr size_t kParameter = 2;

Tensor require(const Context& context, size_t index) {
  const Tensor tensor = context.input(index);
  if (tensor.layout.dtype != kFloat)
    throw Error("input " + std::to_string(index) + " is of element type " + std::to_string(tensor.layout.dtype) +
                ", but must be float");
  return tensor;
}

// What one node of an optimizer works with: elements of all tensors that it changes, and its rates.
template <class Kind>
class Operands {
 public:
  // Throws Error where some of them do not fit, or share memory.
  Operands(const Context& context, const Tensor& gradient, uint64_t offset, uint64_t count)
      : rates_(require(context, 1)) {
    if (rates_.elements() != Kind::kRates)
      throw Error("the rates have " + std::to_string(rates_.elements()) + " elements, but must have " +
                  std::to_string(Kind::kRates));
    std::vector<Memory> memory;
    for (size_t i = 0; i < Kind::kTensors; ++i) {
      const Tensor tensor = require(context, kParameter + i);
      require_room(tensor, kParameter + i, offset, count);
      tensors_[i] = static_cast<float*>(tensor.data) + offset;
      memory.push_back({tensors_[i], count * sizeof(float)});
    }
    memory.insert(memory.end(), {gradient.memory(), rates_.memory()});
    require_apart(memory, Kind::kTensors);
  }

  // Updates some elements, whose gradient is given.
  void update(const float* gradient, uint64_t first, uint64_t count) const {
    std::array<float*, Kind::kTensors> some = tensors_;
    for (float*& tensor : some) tensor += first;
    Kind::run(some.data(), gradient, count, static_cast<const float*>(rates_.data));
  }

 private:
  const Tensor rates_;
  std::array<float*, Kind::kTensors> tensors_{};
};

template <class Kind>
class Update final : public Kernel {
 public:
  explicit Update(const NodeInfo& node) : offset_(node.require_nonnegative("offset")) {}

  void compute(Context& context) override {
    const Tensor gradient = require(context, 0);
    const Operands<Kind> operands(context, gradient, offset_, gradient.elements());
    const auto* const given = static_cast<const float*>(gradient.data);
    each_range(context.workers(), gradient.elements(), 1,
               [&](uint64_t first, uint64_t count) { operands.update(given + first, first, count); });
    context.output_true();
  }

 private:
  uint64_t offset_;
};

template <class Kind>
class UpdateRows final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = require(context, 0), table = require(context, kParameter);
    if (table.layout.shape.rank() == 0) throw Error("the parameter is a scalar and has no rows");
    const uint64_t elements = table.elements();
    const Operands<Kind> operands(context, gradient, 0, elements);
    const auto* const given = static_cast<const float*>(gradient.data);
    const GivenRows rows(gradient, context.input(kParameter + Kind::kTensors), elements, table.layout.shape.data()[0]);
    each_range(context.workers(), elements, 1, [&](uint64_t first, uint64_t count) {
      constexpr uint64_t kElements = 1024;
      float sums[kElements];
      for (const uint64_t end = first + count; first < end; first += kElements) {
        const uint64_t some = std::min(kElements, end - first);
        rows.fill(sums, given, first, some);
        operands.update(sums, first, some);
      }
    });
    context.output_true();
  }
};

}  // namespace

const OpDefinition kUpdateSgd = update_op<Update<Sgd>>("UpdateSgd");
const OpDefinition kUpdateMomentum = update_op<Update<Momentum>>("UpdateMomentum");
const OpDefinition kUpdateAdam = update_op<Update<Adam>>("UpdateAdam");
const OpDefinition kUpdateRowsSgd = update_op<UpdateRows<Sgd>>("UpdateRowsSgd");
const OpDefinition kUpdateRowsMomentum = update_op<UpdateRows<Momentum>>("UpdateRowsMomentum");
const OpDefinition kUpdateRowsAdam = update_op<UpdateRows<Adam>>("UpdateRowsAdam");

}  // namespace poet
