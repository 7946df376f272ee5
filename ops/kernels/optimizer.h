// The arithmetic of the optimizers, for the operators and for what Python asks of the library; optimizer.cpp has the
// formulas. No two arrays overlap; `rates` are as many as the optimizer has.
#pragma once

#include <cstdint>

namespace poet {

void update_sgd(float* parameter, const float* gradient, uint64_t count, const float* rates);
void update_momentum(float* parameter, float* momentum, const float* gradient, uint64_t count, const float* rates);
void update_adam(float* parameter, float* first_moment, float* second_moment, const float* gradient, uint64_t count,
                 const float* rates);

// The sum of a gradient's squares, in double; the order of the additions is the same on every machine.
double sum_of_squares(const float* gradient, uint64_t count);

}  // namespace poet
