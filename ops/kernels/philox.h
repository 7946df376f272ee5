// Random numbers of Philox4x32-10 (Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC
// 2011): four are made of the place of four elements and the number of the run, by a seed. No number depends on
// another, nor on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/kernel.h"

namespace poet {

constexpr uint64_t kDrawn = 4;  // at once
using Drawn = std::array<uint32_t, kDrawn>;

inline Drawn philox(Drawn counter, uint64_t seed) {
  auto first = static_cast<uint32_t>(seed), second = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0], right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ first, static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ second, static_cast<uint32_t>(left)};
    first += 0x9E3779B9;
    second += 0xBB67AE85;
  }
  return counter;
}

// A number of at least 0 and below 1, exact.
inline float even(uint32_t drawn) { return static_cast<float>(drawn >> 8) * 0x1p-24F; }

// Calls `use` with what is drawn for elements `first` to `first + some` of `count`, four of them or what is left.
template <class Use>
void each_drawn(const Workers& workers, uint64_t count, uint64_t seed, uint64_t runs, Use use) {
  each_item(workers, count / kDrawn + (count % kDrawn != 0), kDrawn, [=](uint64_t i) {
    use(philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(runs),
                static_cast<uint32_t>(runs >> 32)},
               seed),
        i * kDrawn, std::min(kDrawn, count - i * kDrawn));
  });
}

}  // namespace poet
