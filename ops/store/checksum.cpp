#include "store/checksum.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poet {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;
constexpr uint64_t kPrimeMix = 0x165667919E3779F9;
constexpr uint64_t kShortPrime1 = 0x9E3779B1;
constexpr uint64_t kShortPrime2 = 0x85EBCA77;
constexpr uint64_t kShortPrime3 = 0xC2B2AE3D;

constexpr size_t kStripeBytes = 64;
constexpr size_t kStripesPerBlock = 16;
constexpr size_t kScrambleAt = 192 - kStripeBytes;  // in the secret

constexpr unsigned char kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

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

uint64_t fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

using Lanes = std::array<uint64_t, 8>;
// Takes `count` stripes of 64 bytes; the secret moves on by 8 bytes for each.
using TakeStripes = void (*)(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count);

// Takes `count` blocks of 16 stripes with the whole secret, and scrambles the lanes behind each.
using TakeBlocks = void (*)(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count);
struct Taking {
  TakeStripes stripes;
  TakeBlocks blocks;
};

void take_stripes(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count) {
  for (; count != 0; --count, data += kStripeBytes, secret += 8) {
    for (size_t i = 0; i < lanes.size(); ++i) {
      const uint64_t word = load<uint64_t>(data + 8 * i);
      const uint64_t keyed = word ^ load<uint64_t>(secret + 8 * i);
      lanes[i ^ 1] += word;
      lanes[i] += (keyed & 0xffffffff) * (keyed >> 32);
    }
  }
}

template <TakeStripes take_block>
void take_blocks(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count) {
  for (; count != 0; --count, data += kStripesPerBlock * kStripeBytes) {
    take_block(lanes, data, secret, kStripesPerBlock);
    for (size_t i = 0; i < lanes.size(); ++i)
      lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load<uint64_t>(secret + kScrambleAt + 8 * i)) * kShortPrime1;
  }
}

#if defined(__x86_64__)

void take_stripes_sse2(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count) {
  auto* const kept = reinterpret_cast<__m128i*>(lanes.data());
  __m128i sums[4] = {kept[0], kept[1], kept[2], kept[3]};
  for (; count != 0; --count, data += kStripeBytes, secret += 8) {
    for (int i = 0; i < 4; ++i) {
      const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i);
      const __m128i keyed = _mm_xor_si128(words, _mm_loadu_si128(reinterpret_cast<const __m128i*>(secret) + i));
      const __m128i products = _mm_mul_epu32(keyed, _mm_srli_epi64(keyed, 32));
      const __m128i swapped = _mm_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
      sums[i] = _mm_add_epi64(sums[i], _mm_add_epi64(products, swapped));
    }
  }
  std::copy(sums, sums + 4, kept);
}

// One more stripe for lanes in two registers.
__attribute__((target("avx2"), always_inline)) inline void take_stripe_avx2(__m256i (&sums)[2],
                                                                            const unsigned char* data,
                                                                            const unsigned char* secret) {
  for (int i = 0; i < 2; ++i) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + i);
    const __m256i keyed = _mm256_xor_si256(words, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i));
    const __m256i products = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
    sums[i] = _mm256_add_epi64(sums[i], _mm256_add_epi64(products, swapped));
  }
}

__attribute__((target("avx2"))) void take_stripes_avx2(Lanes& lanes, const unsigned char* data,
                                                       const unsigned char* secret, size_t count) {
  auto* const kept = reinterpret_cast<__m256i*>(lanes.data());
  __m256i sums[2] = {kept[0], kept[1]};
  for (; count != 0; --count, data += kStripeBytes, secret += 8) take_stripe_avx2(sums, data, secret);
  kept[0] = sums[0];
  kept[1] = sums[1];
}

__attribute__((target("avx2"))) void take_blocks_avx2(Lanes& lanes, const unsigned char* data,
                                                      const unsigned char* secret, size_t count) {
  auto* const kept = reinterpret_cast<__m256i*>(lanes.data());
  const auto* const scramble = reinterpret_cast<const __m256i*>(secret + kScrambleAt);
  const __m256i prime = _mm256_set1_epi64x(static_cast<int64_t>(kShortPrime1));
  __m256i sums[2] = {kept[0], kept[1]};
  for (; count != 0; --count) {
    for (size_t stripe = 0; stripe < kStripesPerBlock; ++stripe, data += kStripeBytes)
      take_stripe_avx2(sums, data, secret + 8 * stripe);
    for (int i = 0; i < 2; ++i) {
      const __m256i shifted = _mm256_xor_si256(sums[i], _mm256_srli_epi64(sums[i], 47));
      const __m256i mixed = _mm256_xor_si256(shifted, _mm256_loadu_si256(scramble + i));
      const __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime), 32);
      sums[i] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), high);
    }
  }
  kept[0] = sums[0];
  kept[1] = sums[1];
}

// The masks mask nothing: GCC 12 warns of its own header behind the functions without (its bug 105593).
constexpr __mmask8 kAll = 0xff;

// One more stripe for lanes in one register.
__attribute__((target("avx512f"), always_inline)) inline __m512i with_stripe_avx512(__m512i sums,
                                                                                    const unsigned char* data,
                                                                                    const unsigned char* secret) {
  const __m512i words = _mm512_loadu_si512(data);
  const __m512i keyed = _mm512_xor_si512(words, _mm512_loadu_si512(secret));
  const __m512i products = _mm512_maskz_mul_epu32(kAll, keyed, _mm512_maskz_srli_epi64(kAll, keyed, 32));
  const __m512i swapped = _mm512_maskz_shuffle_epi32(0xffff, words, _MM_PERM_BADC);
  return _mm512_add_epi64(sums, _mm512_add_epi64(products, swapped));
}

__attribute__((target("avx512f"))) void take_stripes_avx512(Lanes& lanes, const unsigned char* data,
                                                            const unsigned char* secret, size_t count) {
  __m512i sums = _mm512_loadu_si512(lanes.data());
  for (; count != 0; --count, data += kStripeBytes, secret += 8) sums = with_stripe_avx512(sums, data, secret);
  _mm512_storeu_si512(lanes.data(), sums);
}

__attribute__((target("avx512f"))) void take_blocks_avx512(Lanes& lanes, const unsigned char* data,
                                                           const unsigned char* secret, size_t count) {
  const __m512i scramble = _mm512_loadu_si512(secret + kScrambleAt);
  const __m512i prime = _mm512_set1_epi64(static_cast<int64_t>(kShortPrime1));
  __m512i sums = _mm512_loadu_si512(lanes.data());
  for (; count != 0; --count) {
#pragma GCC unroll 16  // keeps the secret in registers
    for (size_t stripe = 0; stripe < kStripesPerBlock; ++stripe, data += kStripeBytes)
      sums = with_stripe_avx512(sums, data, secret + 8 * stripe);
    const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(sums, _mm512_maskz_srli_epi64(kAll, sums, 47)), scramble);
    const __m512i high = _mm512_maskz_slli_epi64(
        kAll, _mm512_maskz_mul_epu32(kAll, _mm512_maskz_srli_epi64(kAll, mixed, 32), prime), 32);
    sums = _mm512_add_epi64(_mm512_maskz_mul_epu32(kAll, mixed, prime), high);
  }
  _mm512_storeu_si512(lanes.data(), sums);
}

#endif

struct Ways {
  std::array<Taking, 4> list;
  size_t count = 0;
};

Ways fastest_first() {
  Ways ways;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) ways.list[ways.count++] = {take_stripes_avx512, take_blocks_avx512};
  if (__builtin_cpu_supports("avx2")) ways.list[ways.count++] = {take_stripes_avx2, take_blocks_avx2};
  ways.list[ways.count++] = {take_stripes_sse2, take_blocks<take_stripes_sse2>};
#endif
  ways.list[ways.count++] = {take_stripes, take_blocks<take_stripes>};
  return ways;
}

const Ways known_ways = fastest_first();

}  // namespace

size_t Checksum::ways() { return known_ways.count; }

void Checksum::begin(uint64_t seed, uint64_t total_bytes) {
  seed_ = seed;
  total_bytes_ = total_bytes;
  rest_bytes_ = 0;
  if (total_bytes <= kMostShortBytes) return;
  lanes_ = {kShortPrime3, kPrime1, kPrime2, kPrime3, kPrime4, kShortPrime2, kPrime5, kShortPrime1};
  for (size_t i = 0; i < kSecretBytes; i += 8) {
    const uint64_t word = load<uint64_t>(kSecret + i);
    const uint64_t keyed = i % 16 == 0 ? word + seed : word - seed;
    std::memcpy(secret_.data() + i, &keyed, sizeof keyed);
  }
}

void Checksum::add_blocks(const unsigned char* data, size_t count) {
  known_ways.list[way_].blocks(lanes_, data, secret_.data(), count);
  std::memcpy(rest_.data(), data + count * kBlockBytes - kStripeBytes, kStripeBytes);
}

void Checksum::add(const void* data, size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  unsigned char* const rest = rest_.data() + kStripeBytes;
  if (rest_bytes_ + bytes > kBlockBytes) {
    const size_t fitting = kBlockBytes - rest_bytes_;
    if (rest_bytes_ != 0) {
      std::memcpy(rest + rest_bytes_, next, fitting);
      add_blocks(rest, 1);
      next += fitting;
      bytes -= fitting;
    }
    if (const size_t count = (bytes - 1) / kBlockBytes; count != 0) {
      add_blocks(next, count);
      next += count * kBlockBytes;
      bytes -= count * kBlockBytes;
    }
    rest_bytes_ = 0;
  }
  if (bytes != 0) std::memcpy(rest + rest_bytes_, next, bytes);
  rest_bytes_ += bytes;
}

uint64_t Checksum::value() const { return total_bytes_ <= kMostShortBytes ? short_value() : long_value(); }

// XXH64.
uint64_t Checksum::short_value() const {
  const unsigned char* next = rest_.data() + kStripeBytes;
  const unsigned char* const end = next + rest_bytes_;
  uint64_t sum = seed_ + kPrime5;
  if (end - next >= 32) {
    uint64_t a = seed_ + kPrime1 + kPrime2, b = seed_ + kPrime2, c = seed_, d = seed_ - kPrime1;
    for (; end - next >= 32; next += 32) {
      a = mix(a, load<uint64_t>(next));
      b = mix(b, load<uint64_t>(next + 8));
      c = mix(c, load<uint64_t>(next + 16));
      d = mix(d, load<uint64_t>(next + 24));
    }
    sum = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    for (const uint64_t lane : {a, b, c, d}) sum = merge(sum, lane);
  }
  sum += total_bytes_;
  for (; end - next >= 8; next += 8) sum = rotate(sum ^ mix(0, load<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  for (; end - next >= 4; next += 4) sum = rotate(sum ^ load<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; next != end; ++next) sum = rotate(sum ^ *next * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

// XXH3.
uint64_t Checksum::long_value() const {
  alignas(64) Lanes lanes = lanes_;
  const unsigned char* const rest = rest_.data() + kStripeBytes;
  known_ways.list[way_].stripes(lanes, rest, secret_.data(), (rest_bytes_ - 1) / kStripeBytes);
  // The last stripe may reach back into the block before.
  known_ways.list[way_].stripes(lanes, rest + rest_bytes_ - kStripeBytes, secret_.data() + kSecretBytes - 71, 1);
  uint64_t sum = total_bytes_ * kPrime1;
  for (size_t i = 0; i < lanes.size(); i += 2) {
    const unsigned char* const secret = secret_.data() + 11 + 8 * i;
    sum += fold(lanes[i] ^ load<uint64_t>(secret), lanes[i + 1] ^ load<uint64_t>(secret + 8));
  }
  sum = (sum ^ sum >> 37) * kPrimeMix;
  return sum ^ sum >> 32;
}

}  // namespace poet
