// What operators on parameters in a store share: the tensor that a handle names, and the optimizers.
#pragma once

#include "kernels/kernel.h"
#include "parameters/optimizer.h"
#include "parameters/parameter_store.h"

namespace poet {

// The tensor that input `index` names.
struct Stored {
  uint64_t tensor = 0;  // is made before the store, which sets it
  std::shared_ptr<ParameterStore> store;

  Stored(const Context& context, size_t index) : store(ParameterStore::of(context.input_token(index), &tensor)) {}
  uint64_t bytes() const { return store->file().tensors().at(tensor).bytes; }
};

}  // namespace poet
