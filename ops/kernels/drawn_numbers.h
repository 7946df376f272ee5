// Numbers to compare products with, drawn so that sums of another order hardly have the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace poet {

using Numbers = std::vector<float>;

// Between -1 and 1, of all magnitudes down to 2^-8, the same for each place.
inline float number(uint64_t place, uint64_t salt) {
  uint64_t bits = (place + 1) * 0x9e3779b97f4a7c15 + salt * 0xd1342543de82ef95;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9;
  bits ^= bits >> 32;
  const auto mantissa = static_cast<float>(static_cast<int32_t>(bits & 0xffffffff)) / 2147483648.0F;
  return mantissa / static_cast<float>(1U << (bits >> 61));
}

inline Numbers numbers(uint64_t count, uint64_t salt) {
  Numbers made(count);
  for (uint64_t i = 0; i < count; ++i) made[i] = number(i, salt);
  return made;
}

inline bool are_same(const float* a, const float* b, uint64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace poet
