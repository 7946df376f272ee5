#include "store/checksum.h"

#include <algorithm>
#include <cstring>

namespace poet {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

// Little-endian, as the specification has it; a big-endian machine gets another sum that serves as well.
template <class Word>
uint64_t load(const unsigned char* data) {
  Word word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * kPrime2, 31) * kPrime1; }

uint64_t merge(uint64_t sum, uint64_t lane) { return (sum ^ mix(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

void Checksum::begin(uint64_t seed) {
  seed_ = seed;
  total_bytes_ = 0;
  lanes_ = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
}

void Checksum::add_stripes(const unsigned char* data, size_t count) {
  auto [a, b, c, d] = lanes_;  // in registers
  for (; count != 0; --count, data += kStripeBytes) {
    a = mix(a, load<uint64_t>(data));
    b = mix(b, load<uint64_t>(data + 8));
    c = mix(c, load<uint64_t>(data + 16));
    d = mix(d, load<uint64_t>(data + 24));
  }
  lanes_ = {a, b, c, d};
}

void Checksum::add(const void* data, size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  const size_t rest_bytes = total_bytes_ % kStripeBytes;
  total_bytes_ += bytes;
  if (rest_bytes != 0) {
    const size_t fitting = std::min(bytes, kStripeBytes - rest_bytes);
    std::copy_n(next, fitting, rest_.begin() + rest_bytes);
    if (rest_bytes + fitting < kStripeBytes) return;
    add_stripes(rest_.data(), 1);
    next += fitting;
    bytes -= fitting;
  }
  add_stripes(next, bytes / kStripeBytes);
  std::copy_n(next + bytes / kStripeBytes * kStripeBytes, bytes % kStripeBytes, rest_.begin());
}

uint64_t Checksum::value() const {
  uint64_t sum = seed_ + kPrime5;
  if (total_bytes_ >= kStripeBytes) {
    sum = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) + rotate(lanes_[3], 18);
    for (const uint64_t lane : lanes_) sum = merge(sum, lane);
  }
  sum += total_bytes_;
  const unsigned char* next = rest_.data();
  const unsigned char* const end = next + total_bytes_ % kStripeBytes;
  for (; end - next >= 8; next += 8) sum = rotate(sum ^ mix(0, load<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  for (; end - next >= 4; next += 4) sum = rotate(sum ^ load<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; next != end; ++next) sum = rotate(sum ^ *next * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

}  // namespace poet
