// Loops over floats that compilers turn into vector code, with sums in a fixed order: the bits are the same on every
// machine.
#pragma once

#include <cstdint>

// Compiled for the widest vectors of the machine that runs it.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define POET_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define POET_WIDE
#endif

namespace poet {

// Floats that are computed with at once, one or several vectors of the processor.
constexpr uint64_t kGroup = 8;
using Group = float __attribute__((vector_size(kGroup * sizeof(float)), aligned(alignof(float)), may_alias));
using Bits = int32_t __attribute__((vector_size(kGroup * sizeof(float)), aligned(alignof(float)), may_alias));

inline const Group& group(const float* first) { return *reinterpret_cast<const Group*>(first); }
inline Group& group(float* first) { return *reinterpret_cast<Group*>(first); }

// Writes number(i) for every i, and reads what stands at `to` just before it writes there.
template <typename Number>
inline void write_each(float* to, uint64_t count, Number number) {
  uint64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    float block[kGroup];
    for (uint64_t k = 0; k < kGroup; ++k) block[k] = number(i + k);
    for (uint64_t k = 0; k < kGroup; ++k) to[i + k] = block[k];
  }
  for (; i < count; ++i) to[i] = number(i);
}

// The sum in double of so many floats, a power of two, in a fixed order.
template <uint64_t kCount>
inline double total(const float* numbers) {
  double sums[kCount];
  for (uint64_t i = 0; i < kCount; ++i) sums[i] = static_cast<double>(numbers[i]);
  for (uint64_t half = kCount / 2; half != 0; half /= 2)
    for (uint64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace poet
