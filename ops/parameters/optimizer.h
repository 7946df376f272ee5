// The arithmetic of the optimizers, for the operators and for what Python asks of the library; optimizer.cpp has the
// formulas. No two arrays overlap; `rates` are as many as the optimizer has.
#pragma once

#include <cstdint>

namespace poet {

void update_sgd(float* parameter, const float* gradient, uint64_t count, const float* rates);
void update_momentum(float* parameter, float* momentum, const float* gradient, uint64_t count, const float* rates);
void update_adam(float* parameter, float* first_moment, float* second_moment, const float* gradient, uint64_t count,
                 const float* rates);

// Adds the squares of a gradient, in double, to sums of every eighth element: so the order of the additions does not
// depend on a machine's vectors, nor on the pieces in which a gradient comes, each but the last a multiple of these.
constexpr uint64_t kSquareLanes = 8;
void add_squares(const float* gradient, uint64_t count, double* lanes);

}  // namespace poet
