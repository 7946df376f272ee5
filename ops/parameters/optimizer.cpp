// The numbers that change from step to step, and those that do not, are `rates`, as floats;
// poet_onnx/description/optimizers.py computes them. Every operation below is one correctly rounded float operation, in
// the order written: CMakeLists.txt turns contraction to fused multiply-add off, so every machine computes the same
// bits.
//
//   Sgd:   rates = (scale, rate, l2)
//       g = scale * gradient + l2 * w;  w = w - rate * g
//   Momentum:   rates = (scale, rate, l2, momentum, nesterov)
//       g = scale * gradient + l2 * w;  b = momentum * b + g;  w = w - rate * (nesterov != 0 ? g + momentum * b : b)
//       (torch.optim.SGD without dampening; b starts as zero)
//   Adam:  rates = (scale, rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon, keep, decay, l2)
//       g = scale * gradient + l2 * w;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + ((1 - beta2) * g) * g
//       w = keep * w - (rate * m) / (sqrt(v) + epsilon);  w = w - decay * w
//       (with decay = 0: torch.optim.Adam and AdamW, which decay before they move. With keep = 1: AdamWComputeMode1 in
//       orttraining/orttraining/training_ops/cpu/optimizer/adamw/adamw.cc of github.com/microsoft/onnxruntime, v1.19.2,
//       which decays afterwards, and whose square root is an approximation on x86)
#include "parameters/optimizer.h"

#include <cmath>

#include "kernels/vector_loops.h"

namespace poet {
namespace {

POET_WIDE void sgd(float* __restrict w, const float* __restrict gradient, uint64_t count, const float* rates) {
  const float scale = rates[0], rate = rates[1], l2 = rates[2];
  for (uint64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i] + l2 * w[i];
    w[i] = w[i] - rate * g;
  }
}

POET_WIDE void momentum_sgd(float* __restrict w, float* __restrict b, const float* __restrict gradient, uint64_t count,
                            const float* rates) {
  const float scale = rates[0], rate = rates[1], l2 = rates[2], momentum = rates[3];
  const bool nesterov = rates[4] != 0.0F;
  for (uint64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i] + l2 * w[i];
    b[i] = momentum * b[i] + g;
    w[i] = w[i] - rate * (nesterov ? g + momentum * b[i] : b[i]);
  }
}

POET_WIDE void adam(float* __restrict w, float* __restrict m, float* __restrict v, const float* __restrict gradient,
                    uint64_t count, const float* rates) {
  const float scale = rates[0], rate = rates[1], beta1 = rates[2], rest1 = rates[3], beta2 = rates[4], rest2 = rates[5],
              epsilon = rates[6], keep = rates[7], decay = rates[8], l2 = rates[9];
  for (uint64_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i] + l2 * w[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + (rest2 * g) * g;
    const float moved = keep * w[i] - (rate * m[i]) / (std::sqrt(v[i]) + epsilon);
    w[i] = moved - decay * moved;
  }
}

POET_WIDE void squares(const float* __restrict gradient, uint64_t count, double* __restrict lanes) {
  constexpr uint64_t kLanes = kSquareLanes;
  const uint64_t whole = count - count % kLanes;
  for (uint64_t i = 0; i < whole; i += kLanes)
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      const double g = static_cast<double>(gradient[i + lane]);
      lanes[lane] += g * g;
    }
  for (uint64_t i = whole; i < count; ++i) {
    const double g = static_cast<double>(gradient[i]);
    lanes[i - whole] += g * g;
  }
}

}  // namespace

void update_sgd(float* parameter, const float* gradient, uint64_t count, const float* rates) {
  sgd(parameter, gradient, count, rates);
}

void update_momentum(float* parameter, float* momentum, const float* gradient, uint64_t count, const float* rates) {
  momentum_sgd(parameter, momentum, gradient, count, rates);
}

void update_adam(float* parameter, float* first_moment, float* second_moment, const float* gradient, uint64_t count,
                 const float* rates) {
  adam(parameter, first_moment, second_moment, gradient, count, rates);
}

void add_squares(const float* gradient, uint64_t count, double* lanes) { squares(gradient, count, lanes); }

}  // namespace poet
