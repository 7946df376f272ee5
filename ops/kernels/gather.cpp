// The gradient of a gather, whose bits do not depend on the number of threads: the runtimes' own kernels add numbers of
// the same place in the order in which threads come, and ScatterND loses some.
//
//   GatherGradient(indices, dY) -> dX
//       dX is of the shape that the integer list `shape` says, of zeros to which the parts of dY are added where Gather
//       along the axis `axis`, of 0 or more, took them from, in the order of the indices. Both are float, indices int32
//       or int64.
//
//   AddRows(base, indices, gradient, after...) -> sum
//       adds to `base`, which is the rows of a table from `first` on, the rows of the gradient that the indices name of
//       them, each summed first, as GatherGradient does; the table has `rows`. Of the sum of a whole table the bits are
//       those of an Add of GatherGradient's, which is never in memory.
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
        rows.accumulate(d_x + first * width, d_y + table * rows.count() * width, row, stop, true);
        first += stop - row;
      }
    });
  }

 private:
  const TensorLayout layout_;
  const uint64_t axis_;
};

class AddRows final : public Kernel {
 public:
  explicit AddRows(const NodeInfo& node)
      : first_(node.require_nonnegative("first")), row_count_(node.require_nonnegative("rows")) {}

  void compute(Context& context) override {
    const Tensor base = context.input(0), indices = context.input(1), gradient = context.input(2);
    for (const Tensor& tensor : {base, gradient})
      if (tensor.layout.dtype != kFloat)
        throw Error("base and gradient are of element types " + std::to_string(base.layout.dtype) + " and " +
                    std::to_string(gradient.layout.dtype) + ", but must be float");
    const Shape& shape = base.layout.shape;
    if (shape.rank() == 0) throw Error("the base is a scalar and has no rows");
    const auto count = static_cast<uint64_t>(shape.data()[0]);
    if (count > row_count_ || first_ > row_count_ - count)
      throw Error(std::to_string(count) + " rows from row " + std::to_string(first_) +
                  " on do not fit into a table of " + std::to_string(row_count_));
    const auto table_rows = static_cast<int64_t>(row_count_);
    const GivenRows rows(read_rows(indices, table_rows), table_rows, product(shape, 1, shape.rank()));
    rows.require(gradient);
    const auto* const from = static_cast<const float*>(base.data);
    auto* const to = static_cast<float*>(context.output(0, shape));
    each_range(context.workers(), count, rows.width(), [&](uint64_t begin, uint64_t some) {
      float* const sums = to + begin * rows.width();
      if (to != from) std::copy_n(from + begin * rows.width(), some * rows.width(), sums);
      const uint64_t row = first_ + begin;
      rows.accumulate(sums, static_cast<const float*>(gradient.data), row, row + some, false);
    });
  }

 private:
  const uint64_t first_, row_count_;
};

}  // namespace

const OpDefinition kAddRows{"AddRows", 1, {kFloat}, Sharing::kAllowed, create<AddRows>, infer_from_input};
const OpDefinition kGatherGradient{"GatherGradient", 1, {kFloat}, Sharing::kNone, create<GatherGradient>,
                                   infer_nothing};

}  // namespace poet
