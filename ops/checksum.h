// The 64-bit checksum of a page: XXH64, over pieces as they come.
// Source of the algorithm: doc/xxhash_spec.md of github.com/Cyan4973/xxHash (Yann Collet), version 0.2.0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace poet {

class Checksum {
 public:
  explicit Checksum(uint64_t seed) { reset(seed); }
  void reset(uint64_t seed);
  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  static constexpr size_t kStripeBytes = 32;

  uint64_t seed_ = 0;
  uint64_t total_bytes_ = 0;
  std::array<uint64_t, 4> lanes_{};
  std::array<unsigned char, kStripeBytes> rest_{};  // bytes that do not fill a stripe yet
  size_t rest_bytes_ = 0;
};

}  // namespace poet
