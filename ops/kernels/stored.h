// What operators on parameters in a store share: the tensor that a handle names, and the optimizers.
#pragma once

#include "kernels/kernel.h"
#include "kernels/optimizer.h"
#include "parameters/parameter_store.h"

namespace poet {

// The tensor that input `index` names.
struct Stored {
  uint64_t tensor = 0;  // is made before the store, which sets it
  std::shared_ptr<ParameterStore> store;

  Stored(const Context& context, size_t index) : store(ParameterStore::of(context.input_token(index), &tensor)) {}
  uint64_t bytes() const { return store->file().tensors().at(tensor).bytes; }
};

// One optimizer: how many rates it has, and its arithmetic on one parameter and what is kept for it.
template <uint64_t kRateCount, uint64_t kTensorCount, auto kLoop>
struct Optimizer {
  static constexpr uint64_t kRates = kRateCount, kTensors = kTensorCount;

  static void run(float* const* tensors, const float* gradient, uint64_t count, const float* rates) {
    if constexpr (kTensors == 1)
      kLoop(tensors[0], gradient, count, rates);
    else if constexpr (kTensors == 2)
      kLoop(tensors[0], tensors[1], gradient, count, rates);
    else
      kLoop(tensors[0], tensors[1], tensors[2], gradient, count, rates);
  }
};

using Sgd = Optimizer<3, 1, update_sgd>;
using Momentum = Optimizer<5, 2, update_momentum>;
using Adam = Optimizer<10, 3, update_adam>;

}  // namespace poet
