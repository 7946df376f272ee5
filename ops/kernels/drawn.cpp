// Random numbers that follow from a seed and the number of the run alone: the kernel keeps nothing, so a training run
// goes on from any step, and a node that is run again within a step draws the same numbers.
//
//   CountedUniform(runs) -> Y, from `low` to below `high`
//   CountedNormal(runs) -> Y, with mean `mean` and standard deviation `scale`
//       Y has the shape `shape`; runs, one int64, counts the runs before this one.
//
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011) makes four
// numbers of the place of four elements and the run, by the seed: no number depends on another, nor on the number of
// threads. Normal ones are made of two by Box and Muller's method.
#include <array>
#include <cmath>

#include "kernels/kernel.h"

namespace poet {
namespace {

constexpr uint64_t kNumbers = 4;  // of a block
using Block = std::array<uint32_t, kNumbers>;

Block philox(Block counter, uint64_t seed) {
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

struct Uniform {
  static constexpr const char *kFirst = "low", *kSecond = "high";
  float low, high;

  void operator()(const Block& drawn, float* numbers) const {
    for (uint64_t i = 0; i < kNumbers; ++i) {
      const float share = static_cast<float>(drawn[i] >> 8) * 0x1p-24F;  // exact, and below 1
      const float number = low + (high - low) * share;
      numbers[i] = number < high ? number : std::nextafter(high, low);
    }
  }
};

struct Normal {
  static constexpr const char *kFirst = "mean", *kSecond = "scale";
  float mean, scale;

  void operator()(const Block& drawn, float* numbers) const {
    constexpr double kTurn = 6.283185307179586;
    for (uint64_t i = 0; i < kNumbers; i += 2) {
      const double share = (drawn[i] + 1.0) * 0x1p-32, angle = kTurn * 0x1p-32 * drawn[i + 1];
      const double radius = std::sqrt(-2 * std::log(share));
      numbers[i] = static_cast<float>(mean + scale * radius * std::cos(angle));
      numbers[i + 1] = static_cast<float>(mean + scale * radius * std::sin(angle));
    }
  }
};

template <class Distribution>
class Counted final : public Kernel {
 public:
  explicit Counted(const NodeInfo& node)
      : seed_(static_cast<uint64_t>(node.require_int("seed"))),
        distribution_{node.require_float(Distribution::kFirst), node.require_float(Distribution::kSecond)},
        shape_(node.require_shape("shape")) {}

  void compute(Context& context) override {
    const auto runs = static_cast<uint64_t>(context.input_token(0));
    auto* const y = static_cast<float*>(context.output(0, shape_));
    const uint64_t count = make_layout(kFloat, shape_).bytes / sizeof(float);
    each_range(context.workers(), count / kNumbers + (count % kNumbers != 0), kNumbers, [&](uint64_t i, uint64_t some) {
      for (const uint64_t end = i + some; i < end; ++i) {
        float numbers[kNumbers];
        distribution_(philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(runs),
                              static_cast<uint32_t>(runs >> 32)},
                             seed_),
                      numbers);
        std::copy_n(numbers, std::min(kNumbers, count - i * kNumbers), y + i * kNumbers);
      }
    });
  }

 private:
  const uint64_t seed_;
  const Distribution distribution_;
  const Shape shape_;
};

}  // namespace

const OpDefinition kCountedNormal{"CountedNormal", 1, {kFloat}, Sharing::kNone, create<Counted<Normal>>, infer_nothing};
const OpDefinition kCountedUniform{"CountedUniform", 1, {kFloat}, Sharing::kNone, create<Counted<Uniform>>,
                                   infer_nothing};

}  // namespace poet
