// The gradient of maximum pooling, in one pass and without a copy of the indices.
//
//   MaxPoolGradient(dY, places) -> dX
//       dX is of the shape that the integer list `shape` says, of zeros to which every element of dY is added, in
//       order, at its place: an int64 that counts through the whole of dX, as MaxPool's second output does.
#include <algorithm>
#include <atomic>

#include "kernels/kernel.h"

namespace poet {
namespace {

struct Range {
  uint64_t first;
  uint64_t count;

  uint64_t end() const { return first + count; }
};

// Makes these elements of dX of those of dY. Returns the first of dY that has its place elsewhere, or their end.
uint64_t scatter(float* d_x, Range to, const float* d_y, const int64_t* places, Range from) {
  std::fill_n(d_x + to.first, to.count, 0.0F);
  for (uint64_t i = from.first; i < from.end(); ++i) {
    const uint64_t place = static_cast<uint64_t>(places[i]) - to.first;
    if (place >= to.count) return i;
    d_x[to.first + place] += d_y[i];
  }
  return from.end();
}

// How many planes, one for each image and channel, both tensors have.
uint64_t planes_of(const Shape& d_x, const Shape& d_y) {
  if (std::min(d_x.rank(), d_y.rank()) < 2 || !std::equal(d_x.data(), d_x.data() + 2, d_y.data())) return 1;
  return std::max<uint64_t>(static_cast<uint64_t>(d_x.data()[0]) * static_cast<uint64_t>(d_x.data()[1]), 1);
}

class MaxPoolGradient final : public Kernel {
 public:
  explicit MaxPoolGradient(const NodeInfo& node) : layout_(make_layout(kFloat, node.require_shape("shape"))) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor indices = context.input(1);
    if (gradient.layout.dtype != kFloat || indices.layout.dtype != kInt64 ||
        indices.layout.shape != gradient.layout.shape)
      throw Error("inputs of element types " + std::to_string(gradient.layout.dtype) + " and " +
                  std::to_string(indices.layout.dtype) + " and of shapes " + to_string(gradient.layout.shape) +
                  " and " + to_string(indices.layout.shape) + " must be float, int64 and alike");
    const auto* d_y = static_cast<const float*>(gradient.data);
    const auto* places = static_cast<const int64_t*>(indices.data);
    auto* d_x = static_cast<float*>(context.output(0, layout_.shape));
    const uint64_t size = layout_.bytes / sizeof(float), count = gradient.elements();
    const uint64_t planes = planes_of(layout_.shape, gradient.layout.shape);
    std::atomic<bool> are_astray{false};
    each_item(context.workers(), planes, size / planes, [&](uint64_t plane) {
      const Range to{plane * (size / planes), size / planes}, from{plane * (count / planes), count / planes};
      if (scatter(d_x, to, d_y, places, from) != from.end()) are_astray = true;
    });
    if (!are_astray) return;
    // MaxPool's places are in the planes of its own windows, others may be anywhere.
    const uint64_t done = scatter(d_x, {0, size}, d_y, places, {0, count});
    if (done != count)
      throw Error("place " + std::to_string(places[done]) + " is outside of an output of " + std::to_string(size) +
                  " elements");
  }

 private:
  TensorLayout layout_;
};

}  // namespace

const OpDefinition kMaxPoolGradient{"MaxPoolGradient", 1, {kFloat}, Sharing::kNone, create<MaxPoolGradient>,
                                    infer_nothing};

}  // namespace poet
