// The gradient of cross entropy by its scores, in place of the probabilities and without a copy of the labels.
//
//   CrossEntropyGradient(probabilities, labels, scale) -> dX
//       Probabilities are float of shape [N, C, D...], labels int32 or int64 of shape [N, D...], from 0 to C - 1; scale
//       is one float, or one for each label. dX is (probability - 1 at the label) * scale, and may take the
//       probabilities' buffer.
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

// A sample: scores for `classes` classes of each of `places` places.
struct Sample {
  uint64_t classes;
  uint64_t places;
};

template <typename Label>
void subtract_ones(float* d_x, const Label* labels, const Sample& of) {
  for (uint64_t place = 0; place < of.places; ++place) {
    const auto label = static_cast<uint64_t>(static_cast<int64_t>(labels[place]));
    if (label >= of.classes)
      throw Error("label " + std::to_string(labels[place]) + " is none of " + std::to_string(of.classes) + " classes");
    d_x[label * of.places + place] -= 1.0F;
  }
}

POET_WIDE void scale_all(float* d_x, uint64_t count, float factor) {
  write_each(d_x, count, [=](uint64_t i) { return d_x[i] * factor; });
}

POET_WIDE void scale_each(float* d_x, const float* factors, uint64_t count) {
  write_each(d_x, count, [=](uint64_t i) { return d_x[i] * factors[i]; });
}

// Whether labels [N, D...] are those of scores [N, C, D...].
bool fit(const Shape& labels, const Shape& scores) {
  return scores.rank() >= 2 && labels.rank() == scores.rank() - 1 && labels.data()[0] == scores.data()[0] &&
         std::equal(labels.data() + 1, labels.data() + labels.rank(), scores.data() + 2);
}

class CrossEntropyGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor probabilities = context.input(0), labels = context.input(1), scale = context.input(2);
    const Shape& shape = probabilities.layout.shape;
    const int32_t type = labels.layout.dtype;
    if (probabilities.layout.dtype != kFloat || (type != kInt32 && type != kInt64) || !fit(labels.layout.shape, shape))
      throw Error("inputs of element types " + std::to_string(probabilities.layout.dtype) + " and " +
                  std::to_string(type) + " and of shapes " + to_string(shape) + " and " +
                  to_string(labels.layout.shape) + " must be floats [N, C, D...] and integers [N, D...]");
    const uint64_t scales = scale.elements() == 1 ? 1 : labels.elements();
    const float* factors = read_floats(context, 2, scales);
    const auto* from = static_cast<const float*>(probabilities.data);
    auto* d_x = static_cast<float*>(context.output(0, shape));
    const Workers workers = context.workers();
    const uint64_t count = probabilities.elements();
    if (d_x != from)
      each_range(workers, count, 1,
                 [=](uint64_t first, uint64_t some) { std::copy_n(from + first, some, d_x + first); });
    if (labels.elements() == 0) return;
    const auto samples = static_cast<uint64_t>(shape.data()[0]);
    const Sample sample{static_cast<uint64_t>(shape.data()[1]), labels.elements() / samples};
    for (uint64_t n = 0; n < samples; ++n) {
      float* const scores = d_x + n * sample.classes * sample.places;
      if (type == kInt32) {
        subtract_ones(scores, static_cast<const int32_t*>(labels.data) + n * sample.places, sample);
      } else {
        subtract_ones(scores, static_cast<const int64_t*>(labels.data) + n * sample.places, sample);
      }
    }
    if (scales == 1) {
      each_range(workers, count, 1, [=](uint64_t first, uint64_t some) { scale_all(d_x + first, some, *factors); });
      return;
    }
    each_item(workers, samples * sample.classes, sample.places, [=](uint64_t row) {
      scale_each(d_x + row * sample.places, factors + row / sample.classes * sample.places, sample.places);
    });
  }
};

}  // namespace

const OpDefinition kCrossEntropyGradient{
    "CrossEntropyGradient", 1, {kFloat}, Sharing::kAllowed, create<CrossEntropyGradient>, infer_from_input};

}  // namespace poet
