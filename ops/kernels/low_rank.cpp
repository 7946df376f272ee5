// A low-rank adapter beside a product with a frozen matrix (Hu et al. 2021, LoRA), and its gradient: one node each.
//
//   AddLowRank(base, x, A, B, scale, bias?, after...) -> y, low
//       low = scale * x A and y = base + bias + low B; the bias, of a number for each column, is there where `biased`
//       is 1. y may take base's buffer, and low may be absent. Where `transposed` is 1, low = scale * x B' and
//       y = base + bias + low A': what the gradient adds to that of x, if x is to be gone by then.
//   AddLowRankGradient(added..., dY, x, low, A, B, scale, after...) -> dX, dA, dB
//       dB = low' dY, dLow = scale * dY B', dA = x' dLow, and dX = dLow A' plus what is added, of which there are
//       `added`: other terms of the gradient by x. dX may take the buffer of the first input, of which nothing is read
//       once dX is begun.
//   AddLowRankWeightGradient(dY, x, low, B, scale, after...) -> dA, dB
//       where nobody wants dX
//
// All are float. x has rows of as many numbers as A has rows, base and dY of as many as B has columns; A has `rank`
// columns. A and B are tensors, or handles of what is in a store, which is read into memory for as long as a product
// takes. Products are by the runtime's Gemm. Sums over rows of x are taken some rows at a time, so that MLAS adds up in
// one order, however many columns a thread has (panels.h).
#include <algorithm>
#include <optional>
#include <string>

#include "kernels/kernel.h"
#include "kernels/runtime_product.h"
#include "kernels/softmax_rows.h"
#include "kernels/stored.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

constexpr uint64_t kMostRows = 128;  // that a sum over rows takes at a time

POET_WIDE void add_all(float* sums, const float* left, const float* right, uint64_t count) {
  write_each(sums, count, [=](uint64_t i) { return left[i] + right[i]; });
}

struct AdapterSizes {
  uint64_t rows;   // of x
  uint64_t taken;  // numbers of a row of x
  uint64_t rank;
  uint64_t made;  // numbers of a row of y
};

Shape ending(Shape shape, uint64_t width) {
  shape.data()[shape.rank() - 1] = static_cast<int64_t>(width);
  return shape;
}

// The numbers of an input that has so many rows of so many.
float* floats_of(const Context& context, size_t index, uint64_t rows, uint64_t width) {
  const Tensor tensor = read_rows_of_floats(context, index);
  if (row_width(tensor) != width || tensor.elements() != rows * width)
    throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be " +
                std::to_string(rows) + " rows of " + std::to_string(width) + " floats");
  return static_cast<float*>(tensor.data);
}

// A or B, in memory or in a store.
class Factor {
 public:
  Factor(const Context& context, size_t index, uint64_t rows, uint64_t columns) : rows_(rows), columns_(columns) {
    const Tensor tensor = context.input(index);
    const TensorLayout wanted = make_layout(kFloat, Shape::of(rows, columns));
    if (tensor.layout.dtype == kInt64) {
      stored_.emplace(context, index);
      if (stored_->bytes() != wanted.bytes)
        throw Error("the stored tensor of input " + std::to_string(index) + " has " + std::to_string(stored_->bytes()) +
                    " bytes, but the matrix " + std::to_string(wanted.bytes));
      return;
    }
    if (tensor.layout.dtype != kFloat || tensor.layout.shape != wanted.shape)
      throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be a matrix of shape " +
                  to_string(wanted.shape) + " of floats");
    data_ = static_cast<float*>(tensor.data);
  }

  // Of the room that it is read into.
  uint64_t floats() const { return stored_ ? rows_ * columns_ : 0; }

  Floats read(float* room) const {
    if (stored_) stored_->store->read(stored_->tensor, 0, room, rows_ * columns_ * sizeof(float));
    return Floats::of(stored_ ? room : data_, rows_, columns_);
  }

 private:
  const uint64_t rows_, columns_;
  std::optional<Stored> stored_;
  float* data_ = nullptr;
};

void scale_rows(const Context& context, float* numbers, const AdapterSizes& sizes, float scale) {
  each_range(context.workers(), sizes.rows, sizes.rank, [&](uint64_t first, uint64_t count) {
    scale_all(numbers + first * sizes.rank, count * sizes.rank, scale);
  });
}

class AddLowRank final : public Kernel {
 public:
  explicit AddLowRank(const NodeInfo& node)
      : is_biased_(node.require_nonnegative("biased") != 0),
        is_transposed_(node.require_nonnegative("transposed") != 0),
        rank_(node.require_nonnegative("rank")),
        low_(node, RuntimeProduct::Operator::kGemm, false, is_transposed_, false),
        high_(node, RuntimeProduct::Operator::kGemm, false, is_transposed_, true) {
    if (rank_ == 0) throw Error("the attribute 'rank' is 0");
  }

  void compute(Context& context) override {
    const Tensor base = read_rows_of_floats(context, 0), x = read_rows_of_floats(context, 1);
    const AdapterSizes sizes{x.elements() / row_width(x), row_width(x), rank_, row_width(base)};
    const uint64_t tall = is_transposed_ ? sizes.made : sizes.taken, wide = is_transposed_ ? sizes.taken : sizes.made;
    const Factor first(context, 2, tall, sizes.rank), second(context, 3, sizes.rank, wide);
    float* const added = floats_of(context, 0, sizes.rows, sizes.made);
    const float scale = *read_floats(context, 4, 1);
    const float* const bias = is_biased_ ? read_floats(context, 5, sizes.made) : nullptr;
    auto* const y = static_cast<float*>(context.output(0, base.layout.shape));
    const OptionalFloats made_low(context, 1, ending(x.layout.shape, sizes.rank));
    float* const low = made_low.get();
    std::optional<Workspace> room;
    if (const uint64_t floats = std::max(first.floats(), second.floats()))
      room.emplace(context.api(), floats * sizeof(float));
    if (sizes.rows == 0) return;
    float* const spare = room ? room->floats() : nullptr;
    const Floats narrow = Floats::of(low, sizes.rows, sizes.rank), sum = Floats::of(y, sizes.rows, sizes.made);
    const Factor &narrows = is_transposed_ ? second : first, &widens = is_transposed_ ? first : second;
    low_.run(context, Floats::of(static_cast<float*>(x.data), sizes.rows, sizes.taken), narrows.read(spare), nullptr,
             narrow);
    scale_rows(context, low, sizes, scale);
    if (bias != nullptr || y != added) {
      each_item(context.workers(), sizes.rows, sizes.made, [&](uint64_t row) {
        const uint64_t at = row * sizes.made;
        if (bias != nullptr)
          add_all(y + at, added + at, bias, sizes.made);
        else
          std::copy_n(added + at, sizes.made, y + at);
      });
    }
    high_.run(context, narrow, widens.read(spare), &sum, sum);
  }

 private:
  const bool is_biased_, is_transposed_;
  const uint64_t rank_;
  const RuntimeProduct low_, high_;
};

// The gradients of A and B.
class Weights {
 public:
  explicit Weights(const NodeInfo& node)
      : low_(node, RuntimeProduct::Operator::kGemm, false, true, false),
        first_(node, RuntimeProduct::Operator::kGemm, true, false, false),
        next_(node, RuntimeProduct::Operator::kGemm, true, false, true) {}

  struct Operands {
    float* d_y;
    float* x;
    float* low;
    Floats second;  // B
    float scale;
    float* d_first;
    float* d_second;
  };

  // Writes dLow, too.
  void run(const Context& context, const AdapterSizes& sizes, const Operands& of, float* d_low) const {
    if (sizes.rows != 0) {
      low_.run(context, Floats::of(of.d_y, sizes.rows, sizes.made), of.second, nullptr,
               Floats::of(d_low, sizes.rows, sizes.rank));
      scale_rows(context, d_low, sizes, of.scale);
    }
    sum(context, sizes.rows, {of.low, sizes.rank}, {of.d_y, sizes.made}, of.d_second);
    sum(context, sizes.rows, {of.x, sizes.taken}, {d_low, sizes.rank}, of.d_first);
  }

 private:
  struct Rows {
    float* data;
    uint64_t width;
  };

  // The product of the first, transposed, and the second.
  void sum(const Context& context, uint64_t rows, Rows left, Rows right, float* made) const {
    const Floats all = Floats::of(made, left.width, right.width);
    if (rows == 0) std::fill_n(made, left.width * right.width, 0.0F);
    for (uint64_t row = 0; row < rows; row += kMostRows) {
      const uint64_t count = std::min(kMostRows, rows - row);
      const Floats some = Floats::of(left.data + row * left.width, count, left.width);
      const Floats others = Floats::of(right.data + row * right.width, count, right.width);
      if (row == 0)
        first_.run(context, some, others, nullptr, all);
      else
        next_.run(context, some, others, &all, all);
    }
  }

  const RuntimeProduct low_, first_, next_;
};

class AddLowRankGradient final : public Kernel {
 public:
  explicit AddLowRankGradient(const NodeInfo& node)
      : added_(node.require_nonnegative("added")),
        weights_(node),
        high_(node, RuntimeProduct::Operator::kGemm, false, true, added_ != 0) {}

  void compute(Context& context) override {
    const Tensor gradient = read_rows_of_floats(context, added_), x = read_rows_of_floats(context, added_ + 1),
                 low = read_rows_of_floats(context, added_ + 2);
    const AdapterSizes sizes{x.elements() / row_width(x), row_width(x), row_width(low), row_width(gradient)};
    const Factor first(context, added_ + 3, sizes.taken, sizes.rank),
        second(context, added_ + 4, sizes.rank, sizes.made);
    float* const d_y = floats_of(context, added_, sizes.rows, sizes.made);
    floats_of(context, added_ + 2, sizes.rows, sizes.rank);
    const float scale = *read_floats(context, added_ + 5, 1);
    for (size_t i = 0; i < added_; ++i) floats_of(context, i, sizes.rows, sizes.taken);
    auto* const d_x = static_cast<float*>(context.output(0, x.layout.shape));
    auto* const d_first = static_cast<float*>(context.output(1, Shape::of(sizes.taken, sizes.rank)));
    auto* const d_second = static_cast<float*>(context.output(2, Shape::of(sizes.rank, sizes.made)));
    const uint64_t numbers = sizes.rows * sizes.rank;
    const Workspace room(context.api(), (numbers + std::max(first.floats(), second.floats())) * sizeof(float));
    float* const d_low = room.floats();
    float* const spare = d_low + numbers;
    weights_.run(
        context, sizes,
        {d_y, static_cast<float*>(x.data), static_cast<float*>(low.data), second.read(spare), scale, d_first, d_second},
        d_low);
    if (sizes.rows == 0) return;
    add(context, sizes, d_x);  // only now, for dX may take the place of dY
    const Floats sum = Floats::of(d_x, sizes.rows, sizes.taken), narrow = Floats::of(d_low, sizes.rows, sizes.rank);
    high_.run(context, narrow, first.read(spare), added_ == 0 ? nullptr : &sum, sum);
  }

 private:
  // Writes the sum of what is added.
  void add(const Context& context, const AdapterSizes& sizes, float* d_x) const {
    for (size_t i = 0; i < added_; ++i) {
      const float* const term = floats_of(context, i, sizes.rows, sizes.taken);
      if (term == d_x) continue;
      each_range(context.workers(), sizes.rows, sizes.taken, [&](uint64_t row, uint64_t count) {
        const uint64_t at = row * sizes.taken;
        if (i == 0)
          std::copy_n(term + at, count * sizes.taken, d_x + at);
        else
          add_all(d_x + at, d_x + at, term + at, count * sizes.taken);
      });
    }
  }

  const uint64_t added_;
  const Weights weights_;
  const RuntimeProduct high_;
};

class AddLowRankWeightGradient final : public Kernel {
 public:
  explicit AddLowRankWeightGradient(const NodeInfo& node) : weights_(node) {}

  void compute(Context& context) override {
    const Tensor gradient = read_rows_of_floats(context, 0), x = read_rows_of_floats(context, 1),
                 low = read_rows_of_floats(context, 2);
    const AdapterSizes sizes{x.elements() / row_width(x), row_width(x), row_width(low), row_width(gradient)};
    const Factor second(context, 3, sizes.rank, sizes.made);
    float* const d_y = floats_of(context, 0, sizes.rows, sizes.made);
    floats_of(context, 2, sizes.rows, sizes.rank);
    const float scale = *read_floats(context, 4, 1);
    auto* const d_first = static_cast<float*>(context.output(0, Shape::of(sizes.taken, sizes.rank)));
    auto* const d_second = static_cast<float*>(context.output(1, Shape::of(sizes.rank, sizes.made)));
    const uint64_t numbers = sizes.rows * sizes.rank;
    const Workspace room(context.api(), (numbers + second.floats()) * sizeof(float));
    weights_.run(context, sizes,
                 {d_y, static_cast<float*>(x.data), static_cast<float*>(low.data), second.read(room.floats() + numbers),
                  scale, d_first, d_second},
                 room.floats());
  }

 private:
  const Weights weights_;
};

}  // namespace

const OpDefinition kAddLowRank{"AddLowRank", 2, {kFloat, kFloat}, Sharing::kAllowed, create<AddLowRank>, infer_nothing};
const OpDefinition kAddLowRankGradient{
    "AddLowRankGradient", 3, {kFloat, kFloat, kFloat}, Sharing::kAllowed, create<AddLowRankGradient>, infer_nothing};
const OpDefinition kAddLowRankWeightGradient{
    "AddLowRankWeightGradient", 2, {kFloat, kFloat}, Sharing::kNone, create<AddLowRankWeightGradient>, infer_nothing};

}  // namespace poet
