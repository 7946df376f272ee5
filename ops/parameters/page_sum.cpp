#include "parameters/page_sum.h"

#include <array>
#include <cstring>

#include "store/checksum.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace poet {
namespace {

constexpr size_t kShortBytes = 240;  // up to which XXH3 has other ways
constexpr size_t kStripeBytes = 64, kLanes = 8, kSecretBytes = 192, kSecretStep = 8;
constexpr size_t kBlockStripes = (kSecretBytes - kStripeBytes) / kSecretStep;
constexpr size_t kLastStripe = kSecretBytes - kStripeBytes - 7, kMerge = 11;  // where in the secret these begin

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9,
                   kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;

constexpr uint64_t kSecret[kSecretBytes / 8] = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072, 0x78E5C0CC4EE679CB,
    0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0, 0xCB00C391BB52283C, 0xA32E531B8B65D088,
    0x4EF90DA297486471, 0xD8ACDEA946EF1938, 0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A,
    0x647378D9C97E9FC8, 0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF,
};

using Lanes = std::array<uint64_t, kLanes>;

// Little-endian, as the specification has it; a big-endian machine gets another sum that serves as well.
uint64_t load(const unsigned char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Each stripe has its part of the secret, 8 bytes behind the one before it.
#if defined(__SSE2__)
__attribute__((target("avx2"))) void add_wide_stripes(Lanes& lanes, const unsigned char* data,
                                                      const unsigned char* secret, size_t count) {
  constexpr size_t kVectors = kLanes / 4;
  auto* const kept = reinterpret_cast<__m256i*>(lanes.data());
  __m256i sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = _mm256_loadu_si256(kept + i);
  for (; count != 0; --count, data += kStripeBytes, secret += kSecretStep)
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + i);
      const __m256i keyed = _mm256_xor_si256(words, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i));
      const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
      const __m256i swapped = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
      sums[i] = _mm256_add_epi64(sums[i], _mm256_add_epi64(product, swapped));
    }
  for (size_t i = 0; i < kVectors; ++i) _mm256_storeu_si256(kept + i, sums[i]);
}

void add_stripes(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count) {
  static const bool has_wide_vectors = __builtin_cpu_supports("avx2") != 0;
  if (has_wide_vectors) return add_wide_stripes(lanes, data, secret, count);
  constexpr size_t kVectors = kLanes / 2;
  const auto at = [](const unsigned char* bytes, size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + i);
  };
  __m128i sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = at(reinterpret_cast<const unsigned char*>(lanes.data()), i);
  for (; count != 0; --count, data += kStripeBytes, secret += kSecretStep)
    for (size_t i = 0; i < kVectors; ++i) {
      const __m128i words = at(data, i), keyed = _mm_xor_si128(words, at(secret, i));
      const __m128i product = _mm_mul_epu32(keyed, _mm_srli_epi64(keyed, 32));
      const __m128i swapped = _mm_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
      sums[i] = _mm_add_epi64(sums[i], _mm_add_epi64(product, swapped));
    }
  for (size_t i = 0; i < kVectors; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data()) + i, sums[i]);
}
#else
void add_stripes(Lanes& lanes, const unsigned char* data, const unsigned char* secret, size_t count) {
  Lanes sums = lanes;  // in registers
  for (; count != 0; --count, data += kStripeBytes, secret += kSecretStep)
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t word = load(data + 8 * i), keyed = word ^ load(secret + 8 * i);
      sums[i ^ 1] += word;
      sums[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
  lanes = sums;
}
#endif

void scramble(Lanes& lanes, const unsigned char* secret) {
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load(secret + 8 * i)) * kPrime32_1;
}

// Both halves of the product of two numbers, folded.
uint64_t folded_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t merged(const Lanes& lanes, const unsigned char* secret, uint64_t start) {
  for (size_t i = 0; i < kLanes; i += 2)
    start += folded_product(lanes[i] ^ load(secret + 8 * i), lanes[i + 1] ^ load(secret + 8 * i + 8));
  start = (start ^ start >> 37) * 0x165667919E3779F9;
  return start ^ start >> 32;
}

std::array<unsigned char, kSecretBytes> secret_of(uint64_t seed) {
  uint64_t words[kSecretBytes / 8];
  for (size_t i = 0; i < kSecretBytes / 8; ++i) words[i] = i % 2 == 0 ? kSecret[i] + seed : kSecret[i] - seed;
  std::array<unsigned char, kSecretBytes> secret{};
  std::memcpy(secret.data(), words, sizeof words);
  return secret;
}

}  // namespace

uint64_t page_sum(const void* data, size_t bytes, uint64_t seed) {
  if (bytes <= kShortBytes) return checksum_of(data, bytes, seed);
  const auto* next = static_cast<const unsigned char*>(data);
  const unsigned char* const end = next + bytes;
  const auto secret = secret_of(seed);
  Lanes lanes{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  constexpr size_t kFoldedBytes = kBlockStripes * kStripeBytes;
  for (size_t blocks = (bytes - 1) / kFoldedBytes; blocks != 0; --blocks, next += kFoldedBytes) {
    add_stripes(lanes, next, secret.data(), kBlockStripes);
    scramble(lanes, secret.data() + kSecretBytes - kStripeBytes);
  }
  add_stripes(lanes, next, secret.data(), static_cast<size_t>(end - 1 - next) / kStripeBytes);
  add_stripes(lanes, end - kStripeBytes, secret.data() + kLastStripe, 1);
  return merged(lanes, secret.data() + kMerge, bytes * kPrime64_1);
}

}  // namespace poet
