// Random numbers that follow from a seed and the number of the run alone: the kernel keeps nothing, so a training run
// goes on from any step, and a node that is run again within a step draws the same numbers.
//
//   CountedUniform(runs) -> Y, from `low` to below `high`
//   CountedNormal(runs) -> Y, with mean `mean` and standard deviation `scale`
//       Y has the shape `shape`; runs, one int64, counts the runs before this one.
//
// Normal numbers are made of two even ones by Box and Muller's method.
#include <cmath>

#include "kernels/kernel.h"
#include "kernels/philox.h"

namespace poet {
namespace {

struct Uniform {
  static constexpr const char *kFirst = "low", *kSecond = "high";
  float low, high;

  void operator()(const Drawn& drawn, float* numbers) const {
    for (uint64_t i = 0; i < kDrawn; ++i) {
      const float share = even(drawn[i]);
      const float number = low + (high - low) * share;
      numbers[i] = number < high ? number : std::nextafter(high, low);
    }
  }
};

struct Normal {
  static constexpr const char *kFirst = "mean", *kSecond = "scale";
  float mean, scale;

  void operator()(const Drawn& drawn, float* numbers) const {
    constexpr double kTurn = 6.283185307179586;
    for (uint64_t i = 0; i < kDrawn; i += 2) {
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
    each_drawn(context.workers(), count, seed_, runs, [&](const Drawn& drawn, uint64_t first, uint64_t some) {
      float numbers[kDrawn];
      distribution_(drawn, numbers);
      std::copy_n(numbers, some, y + first);
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
