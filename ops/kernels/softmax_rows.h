// A softmax over a row of scores that have a scale, a cap and a mask, and its gradient, in vector loops.
#pragma once

#include "kernels/vector_exponent.h"
#include "kernels/vector_loops.h"

namespace poet {

struct SoftmaxNumbers {
  float scale;
  float cap;        // of the scaled scores; 0 for none
  bool is_guarded;  // a row of which nothing is left becomes zeros, and not NaN
};

// Turns scores into weights. Where a cap has slopes, they are written, too.
void softmax_row(float* scores, const float* mask, uint64_t count, const SoftmaxNumbers& numbers, float* slopes);

// Writes the gradient of scores before the scale, from the weights and their gradient; it may take the place of either.
void softmax_gradient_row(float* to, const float* weights, const float* gradient, uint64_t count, float scale,
                          const float* slopes);

// The largest of so many numbers; minus infinity of none.
float most_of(const float* numbers, uint64_t count);

// Writes e to the power of each number, less what is taken off, and returns their sum.
double raise_all(float* numbers, uint64_t count, float off);

// Writes cap * tanh(number / cap) for each.
void cap_all(float* numbers, uint64_t count, float cap);

// How a capped number changes with the one before.
inline float slope_of_cap(float capped, float cap) {
  const float part = capped / cap;
  return 1.0F - part * part;
}

void scale_all(float* numbers, uint64_t count, float factor);

}  // namespace poet
