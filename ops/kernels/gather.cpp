// The gradient of a gather, whose bits do not depend on the number of threads: the runtimes' own kernels add numbers of
// the same place in the order in which threads come, and ScatterND loses some.
//
//   GatherGradient(indices, dY) -> dX
//       dX is of the shape that the integer list `shape` says, of zeros to which the parts of dY are added where Gather
//       along the axis `axis`, of 0 or more, took them from, in the order of the indices. Both are float, indices int32
//       or int64.
#include "kernels/kernel.h"
#include "kernels/rows.h"

namespace poet {
namespace {

// How many sizes of a shape there are between two axes, all in all.
uint64_t product(const Shape& shape, uint64_t begin, uint64_t end) {
  uint64_t size = 1;
  for (uint64_t i = begin; i < end; ++i) size *= static_cast<uint64_t>(shape.data()[i]);
  return size;
}

class GatherGradient final : public Kernel {
 public:
  explicit GatherGradient(const NodeInfo& node)
      : layout_(make_layout(kFloat, node.require_shape("shape"))), axis_(node.require_nonnegative("axis")) {
    if (axis_ >= layout_.shape.rank())
      throw Error("the attribute 'axis' is " + std::to_string(axis_) + ", but the shape is " +
                  to_string(layout_.shape));
  }

  void compute(Context& context) override {
    const Tensor indices = context.input(0), gradient = context.input(1);
    if (gradient.layout.dtype != kFloat)
      throw Error("the gradient is of element type " + std::to_string(gradient.layout.dtype) + ", but must be float");
    const Shape& shape = layout_.shape;
    const uint64_t tables = product(shape, 0, axis_), width = product(shape, axis_ + 1, shape.rank());
    const int64_t size = shape.data()[axis_];
    const GivenRows rows(read_rows(indices, size), size, width);
    rows.require(gradient, tables);
    auto* const d_x = static_cast<float*>(context.output(0, shape));
    if (layout_.bytes == 0) return;
    const auto* const d_y = static_cast<const float*>(gradient.data);
    const auto row_count = static_cast<uint64_t>(size);
    each_range(context.workers(), tables * row_count, width, [&](uint64_t first, uint64_t count) {
      for (const uint64_t end = first + count; first < end;) {
        const uint64_t table = first / row_count, row = first % row_count;
        const uint64_t stop = std::min(row_count, row + (end - first));
        rows.accumulate(d_x + table * row_count * width, d_y + table * rows.count() * width, row, stop, true);
        first += stop - row;
      }
    });
  }

 private:
  const TensorLayout layout_;
  const uint64_t axis_;
};

}  // namespace

const OpDefinition kGatherGradient{"GatherGradient", 1, {kFloat}, Sharing::kNone, create<GatherGradient>,
                                   infer_nothing};

}  // namespace poet
