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

// Writes number(i) for every i, and reads what stands at `to` just before it writes there.
template <typename Number>
inline void write_each(float* to, uint64_t count, Number number) {
  constexpr uint64_t kBlock = 8;
  uint64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    float block[kBlock];
    for (uint64_t k = 0; k < kBlock; ++k) block[k] = number(i + k);
    for (uint64_t k = 0; k < kBlock; ++k) to[i + k] = block[k];
  }
  for (; i < count; ++i) to[i] = number(i);
}

// Sums that many numbers apart from each other are added to in turn, until the end.
constexpr uint64_t kLanes = 32;
struct Lanes {
  float sums[kLanes] = {};

  float total() const {
    double sum = 0;
    for (const float lane : sums) sum += static_cast<double>(lane);
    return static_cast<float>(sum);
  }
};

}  // namespace poet
