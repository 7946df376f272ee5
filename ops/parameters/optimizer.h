// The arithmetic of the optimizers, for the operators and for what Python asks of the library; optimizer.cpp has the
// formulas. No two arrays overlap; `rates` are as many as the optimizer has.
#pragma once

#include <cstdint>

namespace poet {

void update_sgd(float* parameter, const float* gradient, uint64_t count, const float* rates);
void update_momentum(float* parameter, float* momentum, const float* gradient, uint64_t count, const float* rates);
void update_adam(float* parameter, float* first_moment, float* second_moment, const float* gradient, uint64_t count,
                 const float* rates);

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

// Adds the squares of a gradient, in double, to sums of every eighth element: so the order of the additions does not
// depend on a machine's vectors, nor on the pieces in which a gradient comes, each but the last a multiple of these.
constexpr uint64_t kSquareLanes = 8;
void add_squares(const float* gradient, uint64_t count, double* lanes);

}  // namespace poet
