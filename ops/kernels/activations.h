// Activations and their slopes, in loops that compilers turn into vector code: the integer attribute `activation` names
// one, 0 for x * sigmoid(x), 1 for GELU, x * Phi(x) with the normal distribution's Phi, and 2 for its approximation by
// a hyperbolic tangent.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernel.h"
#include "kernels/vector_exponent.h"

namespace poet {

constexpr uint64_t kActivations = 3;
constexpr uint64_t kActivationFloats = 8;  // one takes about as long as so many numbers of another kernel

inline uint64_t activation_of(const NodeInfo& node) {
  const uint64_t activation = node.require_nonnegative("activation");
  if (activation >= kActivations)
    throw Error("the attribute 'activation' is " + std::to_string(activation) + ", but must be below " +
                std::to_string(kActivations));
  return activation;
}

struct Activated {
  float value;
  float slope;
};

// The logistic function, and 1 less it, without a loss of digits.
struct Share {
  float of;
  float rest;
};

inline Share sigmoid(float x) {
  const float power = exponential(x < 0 ? x : -x), large = 1.0F / (1.0F + power), small = power * large;
  return x < 0 ? Share{small, large} : Share{large, small};
}

struct Silu {
  static float value(float x) { return x * sigmoid(x).of; }
  static Activated both(float x) {
    const Share share = sigmoid(x);
    return {x * share.of, share.of * (1.0F + x * share.rest)};
  }
};

struct Gelu {
  static constexpr float kRootOfHalf = 0.707106781F, kDensity = 0.398942280F;  // 1 / sqrt(2 pi)

  __attribute__((always_inline)) static float below(float x, float power) {
    const float size = (x < 0 ? -x : x) * kRootOfHalf, tail = 0.5F * error_complement(size, power);
    return x < 0 ? tail : 1.0F - tail;
  }
  static float value(float x) { return x * below(x, exponential(-0.5F * x * x)); }
  static Activated both(float x) {
    const float power = exponential(-0.5F * x * x), share = below(x, power);
    return {x * share, share + x * (kDensity * power)};
  }
};

// (1 + tanh(u)) / 2 is the logistic function of 2 u, which loses no digits where x is far below 0.
struct GeluTanh {
  static constexpr float kFactor = 1.59576912F, kCubic = 0.044715F;  // 2 sqrt(2 / pi)

  static float inner(float x) { return kFactor * (x + kCubic * x * x * x); }
  static float value(float x) { return x * sigmoid(inner(x)).of; }
  static Activated both(float x) {
    const Share share = sigmoid(inner(x));
    return {x * share.of, share.of * (1.0F + x * share.rest * (kFactor * (1.0F + 3.0F * kCubic * x * x)))};
  }
};

}  // namespace poet
