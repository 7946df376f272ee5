// Dropout whose random numbers follow from its seed and the number of the run alone: the kernel keeps nothing, so a
// training run goes on from any step, and a node that is run again within a step drops the same elements.
//
//   CountedDropout(X, ratio, runs) -> (Y, mask)
//       Y is X / (1 - ratio) where the mask is true, zero elsewhere. ratio is one float of at least 0 and below 1;
//       runs, one int64, counts the runs before this one.
//
// The numbers are those of ONNX Runtime's own Dropout with that seed in its run of that number, which makes a generator
// of seed + runs for each (onnxruntime/core/providers/cpu/nn/dropout_op.h of github.com/microsoft/onnxruntime,
// v1.19.2): std::default_random_engine of libstdc++, which is std::minstd_rand0, behind
// std::uniform_real_distribution<float>.
#include "kernels/kernel.h"

namespace poet {
namespace {

// std::minstd_rand0 of the C++ standard, [rand.predef].
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed % kModulus == 0 ? 1 : seed % kModulus) {}

  // Leaves out the next `count` numbers.
  void skip(uint64_t count) {
    for (uint64_t factor = kMultiplier; count != 0; count /= 2, factor = factor * factor % kModulus)
      if (count % 2 != 0) state_ = state_ * factor % kModulus;
  }

  // A number of at least 0 and below 1, as libstdc++'s generate_canonical<float, 24> makes it.
  float next() {
    state_ = state_ * kMultiplier % kModulus;
    constexpr float kRange = 2147483648.0F;  // kModulus - 1, in float
    constexpr float kLargest = 0x1.fffffep-1F;
    const float number = static_cast<float>(state_ - 1) / kRange;
    return number < 1 ? number : kLargest;
  }

 private:
  static constexpr uint64_t kMultiplier = 16807, kModulus = 2147483647;
  uint64_t state_;
};

template <typename T>
void drop(const Workers& workers, T* y, bool* mask, const T* x, uint64_t count, float ratio, const Generator& all) {
  const auto kept = static_cast<T>(1.0F - ratio);
  each_range(workers, count, 1, [=](uint64_t i, uint64_t some) {
    Generator generator = all;
    generator.skip(i);
    for (const uint64_t end = i + some; i < end; ++i) {
      mask[i] = generator.next() >= ratio;
      y[i] = static_cast<T>(mask[i]) * x[i] / kept;
    }
  });
}

class CountedDropout final : public Kernel {
 public:
  explicit CountedDropout(const NodeInfo& node) : seed_(static_cast<uint64_t>(node.require_int("seed"))) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    const float ratio = *read_floats(context, 1, 1);
    const auto runs = static_cast<uint64_t>(context.input_token(2));
    if (x.layout.dtype != kFloat && x.layout.dtype != kDouble)
      throw Error("input 0 is of element type " + std::to_string(x.layout.dtype) + ", but must be float or double");
    if (!(ratio >= 0 && ratio < 1))
      throw Error("the ratio is " + std::to_string(ratio) + ", but must be at least 0 and below 1");
    void* const y = context.output(0, x.layout.shape);
    auto* const mask = static_cast<bool*>(context.output(1, x.layout.shape));
    const Generator generator(seed_ + runs);
    if (x.layout.dtype == kFloat) {
      drop(context.workers(), static_cast<float*>(y), mask, static_cast<const float*>(x.data), x.elements(), ratio,
           generator);
    } else {
      drop(context.workers(), static_cast<double*>(y), mask, static_cast<const double*>(x.data), x.elements(), ratio,
           generator);
    }
  }

 private:
  uint64_t seed_;
};

}  // namespace

const OpDefinition kCountedDropout{"CountedDropout",     2, {kUndefined, kBool}, Sharing::kNone, create<CountedDropout>,
                                   infer_type_from_input};

}  // namespace poet
