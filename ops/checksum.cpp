#include "checksum.h"

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

// Takes whole stripes and returns where they end.
const unsigned char* take_stripes(std::array<uint64_t, 4>& lanes, const unsigned char* data, size_t stripes) {
  auto [a, b, c, d] = lanes;
  for (; stripes != 0; --stripes, data += 32) {
    a = mix(a, load<uint64_t>(data));
    b = mix(b, load<uint64_t>(data + 8));
    c = mix(c, load<uint64_t>(data + 16));
    d = mix(d, load<uint64_t>(data + 24));
  }
  lanes = {a, b, c, d};
  return data;
}

}  // namespace

void Checksum::reset(uint64_t seed) {
  seed_ = seed;
  total_bytes_ = 0;
  rest_bytes_ = 0;
  lanes_ = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
}

void Checksum::add(const void* data, size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  if (rest_bytes_ != 0) {
    const size_t fitting = std::min(bytes, kStripeBytes - rest_bytes_);
    std::memcpy(rest_.data() + rest_bytes_, next, fitting);
    rest_bytes_ += fitting;
    next += fitting;
    bytes -= fitting;
    if (rest_bytes_ < kStripeBytes) return;
    take_stripes(lanes_, rest_.data(), 1);
    rest_bytes_ = 0;
  }
  next = take_stripes(lanes_, next, bytes / kStripeBytes);
  rest_bytes_ = bytes % kStripeBytes;
  if (rest_bytes_ != 0) std::memcpy(rest_.data(), next, rest_bytes_);
}

uint64_t Checksum::value() const {
  uint64_t sum = seed_ + kPrime5;
  if (total_bytes_ >= kStripeBytes) {
    const auto& [a, b, c, d] = lanes_;
    sum = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    for (const uint64_t lane : lanes_) sum = merge(sum, lane);
  }
  sum += total_bytes_;
  const unsigned char* next = rest_.data();
  const unsigned char* end = next + rest_bytes_;
  for (; end - next >= 8; next += 8) sum = rotate(sum ^ mix(0, load<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  for (; end - next >= 4; next += 4) sum = rotate(sum ^ load<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; next != end; ++next) sum = rotate(sum ^ *next * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

}  // namespace poet
