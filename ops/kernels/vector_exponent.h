// e to the power of a float, its hyperbolic tangent and its error function, in loops that compilers turn into vector
// code: the bits are the same on every machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace poet {

template <typename To, typename From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Of what is at most 0, to about one unit in the last place: 0 where the power is no normal float, NaN of NaN. Powers
// of 2 are split off, and the rest is a polynomial (expf of S. Moshier's Cephes library, netlib.org/cephes).
inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504F, kTwoHigh = 0.693359375F, kTwoLow = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: what is added to it is rounded to whole numbers
  constexpr float kLeast = -87.3F;
  constexpr uint32_t kOne = 127, kMantissa = 23;
  const float rounded = x * kLog2E + kRound, power = rounded - kRound;
  const float rest = x - power * kTwoHigh - power * kTwoLow;
  float y = 1.9875691500e-4F;
  y = y * rest + 1.3981999507e-3F;
  y = y * rest + 8.3334519073e-3F;
  y = y * rest + 4.1665795894e-2F;
  y = y * rest + 1.6666665459e-1F;
  y = y * rest + 5.0000001201e-1F;
  y = y * (rest * rest) + rest + 1.0F;
  const uint32_t exponent = same_bits<uint32_t>(rounded) - same_bits<uint32_t>(kRound) + kOne;
  const float made = y * same_bits<float>(exponent << kMantissa);
  return x < kLeast ? 0.0F : made;
}

// To about one unit in the last place: a polynomial where it is small (tanhf of the same library).
inline float hyperbolic_tangent(float x) {
  constexpr float kSmall = 0.625F;
  const float size = x < 0 ? -x : x, square = x * x, power = exponential(-2 * size);
  float y = -5.70498872745e-3F;
  y = y * square + 2.06390887954e-2F;
  y = y * square - 5.37397155531e-2F;
  y = y * square + 1.33314422036e-1F;
  y = y * square - 3.33332819422e-1F;
  const float near = y * square * x + x, far = (1.0F - power) / (1.0F + power);
  return size < kSmall ? near : (x < 0 ? -far : far);
}

// 1 less the error function of what is 0 or more, to about 2e-7, given e to the power of its square, negated:
// polynomials (erfcf of the same library). Compilers would not inline it into loops of their own accord.
__attribute__((always_inline)) inline float error_complement(float x, float power) {
  constexpr float kSmall = 1.0F, kLarge = 2.0F;
  const float square = x * x, inverse = 1.0F / x, y = inverse * inverse;
  float small = 7.853861353153693e-5F;
  small = small * square - 8.010193625184903e-4F;
  small = small * square + 5.188327685732524e-3F;
  small = small * square - 2.685381193529856e-2F;
  small = small * square + 1.128358514861418e-1F;
  small = small * square - 3.761262582423300e-1F;
  small = small * square + 1.128379165726710F;
  float middle = 2.326819970068386e-2F;
  middle = middle * y - 1.387039388740657e-1F;
  middle = middle * y + 3.687424674597105e-1F;
  middle = middle * y - 5.824733027278666e-1F;
  middle = middle * y + 6.210004621745983e-1F;
  middle = middle * y - 4.944515323274145e-1F;
  middle = middle * y + 3.404879937665872e-1F;
  middle = middle * y - 2.741127028184656e-1F;
  middle = middle * y + 5.638259427386472e-1F;
  float large = -1.047766399936249e1F;
  large = large * y + 1.297719955372516e1F;
  large = large * y - 7.495518717768503F;
  large = large * y + 2.921019019210786F;
  large = large * y - 1.015265279202700F;
  large = large * y + 4.218463358204948e-1F;
  large = large * y - 2.820767439740514e-1F;
  large = large * y + 5.641895067754075e-1F;
  const float far = power * inverse * (x < kLarge ? middle : large);
  return x < kSmall ? 1.0F - x * small : far;
}

}  // namespace poet
