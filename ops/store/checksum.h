// The 64-bit checksum of a page, over pieces as they come: XXH3 of 64 bits with a seed. Pages of up to 240 bytes, for
// which XXH3 has three more algorithms, get XXH64.
// Source of both: doc/xxhash_spec.md of github.com/Cyan4973/xxHash (Yann Collet), version 0.2.0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace poet {

class Checksum {
 public:
  static constexpr uint64_t kMostShortBytes = 240;

  // How many ways this machine has to go over a long page, the fastest first; the sums are the same.
  static size_t ways();
  explicit Checksum(size_t way = 0) : way_(way) {}

  void begin(uint64_t seed, uint64_t total_bytes);
  void add(const void* data, size_t bytes);  // in all as many as were announced
  uint64_t value() const;

 private:
  static constexpr size_t kStripeBytes = 64;
  static constexpr size_t kBlockBytes = 1024;
  static constexpr size_t kSecretBytes = 192;
  using Lanes = std::array<uint64_t, 8>;

  void add_blocks(const unsigned char* data, size_t count);
  uint64_t short_value() const;
  uint64_t long_value() const;

  size_t way_;
  uint64_t seed_ = 0;
  uint64_t total_bytes_ = 0;
  alignas(64) Lanes lanes_{};
  std::array<unsigned char, kSecretBytes> secret_{};
  // The last stripe of what the lanes have taken, and behind it what they have not: always the last block, even a whole
  // one.
  std::array<unsigned char, kStripeBytes + kBlockBytes> rest_{};
  size_t rest_bytes_ = 0;
};

}  // namespace poet
