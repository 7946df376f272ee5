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

// What one node of an optimizer works with: a gradient, and elements of all tensors that it changes.
template <class Kind>
class Operands {
 public:
  // Throws Error where some of them do not fit, or share memory.
  Operands(const Context& context, uint64_t offset, uint64_t count)
      : gradient_(require(context, 0)), rates_(require(context, 1)) {
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
    memory.insert(memory.end(), {gradient_.memory(), rates_.memory()});
    require_apart(memory, Kind::kTensors);
  }

  const float* gradient() const { return static_cast<const float*>(gradient_.data); }

  // Updates some elements, whose gradient is given.
  void update(const float* gradient, uint64_t first, uint64_t count) const {
    std::array<float*, Kind::kTensors> some = tensors_;
    for (float*& tensor : some) tensor += first;
    Kind::run(some.data(), gradient, count, static_cast<const float*>(rates_.data));
  }

 private:
  const Tensor gradient_, rates_;
  std::array<float*, Kind::kTensors> tensors_{};
};

template <class Kind>
class Update final : public Kernel {
 public:
  explicit Update(const NodeInfo& node) : offset_(node.require_nonnegative("offset")) {}

  void compute(Context& context) override {
    const uint64_t elements = require(context, 0).elements();
    const Operands<Kind> operands(context, offset_, elements);
    each_range(context.workers(), elements, 1,
               [&](uint64_t first, uint64_t count) { operands.update(operands.gradient() + first, first, count); });
    context.output_true();
  }

 private:
  uint64_t offset_;
};

template <class Kind>
class UpdateRows final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor table = require(context, kParameter);
    if (table.layout.shape.rank() == 0) throw Error("the parameter is a scalar and has no rows");
    const uint64_t elements = table.elements();
    const Operands<Kind> operands(context, 0, elements);
    const GivenRows rows(require(context, 0), context.input(kParameter + Kind::kTensors), elements,
                         table.layout.shape.data()[0]);
    each_range(context.workers(), elements, 1, [&](uint64_t first, uint64_t count) {
      constexpr uint64_t kElements = 1024;
      float sums[kElements];
      for (const uint64_t end = first + count; first < end; first += kElements) {
        const uint64_t some = std::min(kElements, end - first);
        rows.fill(sums, operands.gradient(), first, some);
        operands.update(sums, first, some);
      }
    });
    context.output_true();
  }
};

template <class K>
constexpr OpDefinition update_op(const char* name) {
  return {name, 1, {kBool}, Sharing::kNone, create<K>, infer_nothing};
}

}  // namespace

const OpDefinition kUpdateSgd = update_op<Update<Sgd>>("UpdateSgd");
const OpDefinition kUpdateMomentum = update_op<Update<Momentum>>("UpdateMomentum");
const OpDefinition kUpdateAdam = update_op<Update<Adam>>("UpdateAdam");
const OpDefinition kUpdateRowsSgd = update_op<UpdateRows<Sgd>>("UpdateRowsSgd");
const OpDefinition kUpdateRowsMomentum = update_op<UpdateRows<Momentum>>("UpdateRowsMomentum");
const OpDefinition kUpdateRowsAdam = update_op<UpdateRows<Adam>>("UpdateRowsAdam");

}  // namespace poet
