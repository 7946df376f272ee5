#include "kernels/softmax_rows.h"

#include <limits>

namespace poet {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr uint64_t kLanes = 16;       // sums that numbers next to each other are added to in turn
constexpr uint64_t kMostTimes = 256;  // that a lane is added to before it goes on in double

POET_WIDE void add_mask(float* scores, const float* mask, uint64_t count) {
  write_each(scores, count, [=](uint64_t i) { return scores[i] + mask[i]; });
}

POET_WIDE void write_slopes(float* slopes, const float* capped, uint64_t count, float cap) {
  write_each(slopes, count, [=](uint64_t i) { return slope_of_cap(capped[i], cap); });
}

POET_WIDE double dot(const float* one, const float* other, uint64_t count) {
  double all = 0;
  for (uint64_t i = 0; i < count;) {
    float lanes[kLanes] = {};
    const uint64_t left = count - i, end = i + (left < kMostTimes * kLanes ? left : kMostTimes * kLanes);
    for (; i + kLanes <= end; i += kLanes)
      for (uint64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += one[i + lane] * other[i + lane];
    for (uint64_t lane = 0; i + lane < end; ++lane) lanes[lane] += one[i + lane] * other[i + lane];
    i = end;
    all += total<kLanes>(lanes);
  }
  return all;
}

POET_WIDE float wide_most_of(const float* numbers, uint64_t count) {
  float lanes[kGroup], most = kNothing;
  for (uint64_t k = 0; k < kGroup; ++k) lanes[k] = kNothing;
  uint64_t i = 0;
  for (; i + kGroup <= count; i += kGroup)
    for (uint64_t k = 0; k < kGroup; ++k) lanes[k] = lanes[k] < numbers[i + k] ? numbers[i + k] : lanes[k];
  for (; i < count; ++i) most = most < numbers[i] ? numbers[i] : most;
  for (uint64_t k = 0; k < kGroup; ++k) most = most < lanes[k] ? lanes[k] : most;
  return most;
}

POET_WIDE double wide_raise_all(float* numbers, uint64_t count, float off) {
  float sums[kGroup] = {};
  uint64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    float block[kGroup];
    for (uint64_t k = 0; k < kGroup; ++k) block[k] = exponential(numbers[i + k] - off);
    for (uint64_t k = 0; k < kGroup; ++k) sums[k] += block[k];
    for (uint64_t k = 0; k < kGroup; ++k) numbers[i + k] = block[k];
  }
  double rest = 0;
  for (; i < count; ++i) rest += static_cast<double>(numbers[i] = exponential(numbers[i] - off));
  return total<kGroup>(sums) + rest;
}

POET_WIDE void wide_cap_all(float* numbers, uint64_t count, float cap) {
  write_each(numbers, count, [=](uint64_t i) { return cap * hyperbolic_tangent(numbers[i] / cap); });
}

POET_WIDE void wide_scale_all(float* numbers, uint64_t count, float factor) {
  write_each(numbers, count, [=](uint64_t i) { return numbers[i] * factor; });
}

POET_WIDE void wide_gradient_row(float* to, const float* weights, const float* gradient, uint64_t count, float scale,
                                 const float* slopes) {
  const auto mean = static_cast<float>(dot(weights, gradient, count));
  if (slopes == nullptr)
    write_each(to, count, [=](uint64_t i) { return weights[i] * (gradient[i] - mean) * scale; });
  else
    write_each(to, count, [=](uint64_t i) { return weights[i] * (gradient[i] - mean) * scale * slopes[i]; });
}

}  // namespace

// These are called from other files, which a function that the processor chooses must not be: it is chosen while the
// library is loaded, perhaps before what chooses it is there.
float most_of(const float* numbers, uint64_t count) { return wide_most_of(numbers, count); }

double raise_all(float* numbers, uint64_t count, float off) { return wide_raise_all(numbers, count, off); }

void cap_all(float* numbers, uint64_t count, float cap) { wide_cap_all(numbers, count, cap); }

void scale_all(float* numbers, uint64_t count, float factor) { wide_scale_all(numbers, count, factor); }

void softmax_gradient_row(float* to, const float* weights, const float* gradient, uint64_t count, float scale,
                          const float* slopes) {
  wide_gradient_row(to, weights, gradient, count, scale, slopes);
}

void softmax_row(float* scores, const float* mask, uint64_t count, const SoftmaxNumbers& numbers, float* slopes) {
  scale_all(scores, count, numbers.scale);
  if (numbers.cap != 0) {
    cap_all(scores, count, numbers.cap);
    if (slopes != nullptr) write_slopes(slopes, scores, count, numbers.cap);
  }
  if (mask != nullptr) add_mask(scores, mask, count);
  const float most = most_of(scores, count);
  if (numbers.is_guarded && most == kNothing) {
    for (uint64_t i = 0; i < count; ++i) scores[i] = 0.0F;
    return;
  }
  scale_all(scores, count, static_cast<float>(1 / raise_all(scores, count, most)));
}

}  // namespace poet
