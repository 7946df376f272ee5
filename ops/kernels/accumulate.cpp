// Gradient accumulation that never holds a whole weight gradient.
//
//   Accumulate(buffer, part, overwrite, after...) -> updated
//       adds `part` to the buffer's elements from `offset` on, or puts it there
//   AccumulateRows(buffer, indices, gradient, overwrite, after...) -> updated
//       adds the rows of `gradient` to the rows of the buffer that `indices` name, or makes the buffer that sum
//
// Both change the buffer, their first input, in place, and give the bits that a whole gradient and ONNX Runtime's
// InPlaceAccumulatorV2 would give: an element is the old value plus the gradient's, which for AccumulateRows is summed
// first, in the order of the indices and starting from zero, as GatherGrad does.
#include <algorithm>

#include "kernels/kernel.h"
#include "kernels/rows.h"

namespace poet {
namespace {

constexpr size_t kFlag = 2;      // input of Accumulate
constexpr size_t kRowsFlag = 3;  // input of AccumulateRows

void require_same_type(const Tensor& buffer, const Tensor& gradient) {
  const int32_t dtype = buffer.layout.dtype;
  if (dtype != gradient.layout.dtype || (dtype != kFloat && dtype != kDouble))
    throw Error("the buffer is of element type " + std::to_string(dtype) + ", the gradient of " +
                std::to_string(gradient.layout.dtype) + ": both must be float or both double");
}

template <typename T>
void add(T* to, const T* from, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <typename T>
void accumulate(const Workers& workers, void* buffer, const Tensor& part, uint64_t offset, bool overwrite) {
  T* const to = static_cast<T*>(buffer) + offset;
  const auto* from = static_cast<const T*>(part.data);
  each_range(workers, part.elements(), 1, [=](uint64_t first, uint64_t count) {
    if (overwrite) {
      std::copy_n(from + first, count, to + first);
    } else {
      add(to + first, from + first, count);
    }
  });
}

class Accumulate final : public Kernel {
 public:
  explicit Accumulate(const NodeInfo& node) : offset_(node.require_nonnegative("offset")) {}

  void compute(Context& context) override {
    const Tensor buffer = context.input(0);
    const Tensor part = context.input(1);
    const bool overwrite = read_flag(context, kFlag);
    require_same_type(buffer, part);
    require_room(buffer, 0, offset_, part.elements());
    require_apart({buffer.memory(), part.memory()}, 1);
    if (buffer.layout.dtype == kFloat) {
      accumulate<float>(context.workers(), buffer.data, part, offset_, overwrite);
    } else {
      accumulate<double>(context.workers(), buffer.data, part, offset_, overwrite);
    }
    context.output_true();
  }

 private:
  uint64_t offset_;
};

template <typename T>
void accumulate_rows(const Workers& workers, const Tensor& buffer, const Tensor& gradient, const GivenRows& rows,
                     bool overwrite) {
  auto* const to = static_cast<T*>(buffer.data);
  const auto* from = static_cast<const T*>(gradient.data);
  each_range(workers, static_cast<uint64_t>(rows.row_count()), rows.width(), [&](uint64_t first, uint64_t count) {
    rows.accumulate(to + first * rows.width(), from, first, first + count, overwrite);
  });
}

class AccumulateRows final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor buffer = context.input(0);
    const Tensor indices = context.input(1);
    const Tensor gradient = context.input(2);
    const bool overwrite = read_flag(context, kRowsFlag);
    require_same_type(buffer, gradient);
    if (buffer.layout.shape.rank() == 0) throw Error("the buffer is a scalar and has no rows");
    const int64_t row_count = buffer.layout.shape.data()[0];
    const GivenRows rows(gradient, indices, buffer.elements(), row_count);
    require_apart({buffer.memory(), gradient.memory()}, 1);
    if (buffer.layout.dtype == kFloat) {
      accumulate_rows<float>(context.workers(), buffer, gradient, rows, overwrite);
    } else {
      accumulate_rows<double>(context.workers(), buffer, gradient, rows, overwrite);
    }
    context.output_true();
  }
};

}  // namespace

const OpDefinition kAccumulate = update_op<Accumulate>("Accumulate");
const OpDefinition kAccumulateRows = update_op<AccumulateRows>("AccumulateRows");

}  // namespace poet
