// Parameters that live in a store on disk. A handle, one int64, says which tensor of which store is meant; what the
// optimizer keeps for a parameter are the tensors behind it. Handles change hands only: the parameter itself is in
// memory between a load and its last reader.
//
//   LoadStored(handle, after...) -> parameter
//       a matrix transposed, where the node says so: the store has it as the user does
//   GatherStored(handle, indices, after...) -> rows
//       the rows of a table that indices name
//   UpdateStoredSgd, UpdateStoredMomentum, UpdateStoredAdam(gradient, rates, handle, after...) -> updated
//       update as UpdateSgd and its like do (optimizer.cpp), to the same bits, in the store; of a matrix also where the
//       gradient is transposed
//   UpdateRowsStoredSgd, ...(gradient, rates, handle, indices, after...) -> updated
//       the same where the gradient has rows of a table, and is zero elsewhere: rows are summed as AccumulateRows does;
//       where the node says `deferred`, pages without such rows get their update later (deferred_updates.h)
//   AccumulateStored(gradient, handle, overwrite, after...) -> updated
//   AccumulateRowsStored(gradient, handle, indices, overwrite, after...) -> updated
//       collect a gradient as Accumulate and AccumulateRows do, to the same bits, in the tensor behind those that the
//       optimizer keeps for the parameter; the parameter is updated after the step
#include "kernels/stored.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/rows.h"

namespace poet {
namespace {

// Calls `move` with the places of elements `first` to `first + count` of a matrix, and with their places in the
// transposed one, which has `rows` columns. Both sides are walked in tiles, which stay in the processor's cache.
template <class Move>
void each_transposed(uint64_t rows, uint64_t columns, uint64_t first, uint64_t count, Move move) {
  constexpr uint64_t kTile = 16;  // floats of a cache line
  if (count == 0) return;
  const uint64_t end = first + count;
  for (uint64_t tile = 0; tile < columns; tile += kTile)
    for (uint64_t row = first / columns; row <= (end - 1) / columns; ++row) {
      const uint64_t begin = row * columns, stop = std::min(begin + std::min(tile + kTile, columns), end);
      for (uint64_t i = std::max(begin + tile, first); i < stop; ++i) move(i, (i - begin) * rows + row);
    }
}

bool is_transposed(const NodeInfo& node) {
  int64_t value = 0;
  return node.optional_int("transposed", &value) && value != 0;
}

class LoadStored final : public Kernel {
 public:
  explicit LoadStored(const NodeInfo& node)
      : layout_(make_layout(node.require_int("dtype"), node.require_shape("shape"))), transposed_(is_transposed(node)) {
    if (transposed_ && (layout_.dtype != kFloat || layout_.shape.rank() != 2))
      throw Error("only a matrix of floats can be loaded transposed");
  }

  void compute(Context& context) override {
    const Stored stored(context, 0);
    if (stored.bytes() != layout_.bytes)
      throw Error("the stored tensor has " + std::to_string(stored.bytes()) + " bytes, but the node makes " +
                  std::to_string(layout_.bytes));
    void* const out = context.output(0, layout_.shape);
    if (transposed_)
      transpose(stored, static_cast<float*>(out));
    else
      stored.store->read(stored.tensor, 0, out, layout_.bytes);
  }

 private:
  void transpose(const Stored& stored, float* out) const {
    const auto rows = static_cast<uint64_t>(layout_.shape.data()[1]),
               columns = static_cast<uint64_t>(layout_.shape.data()[0]);
    stored.store->read_pages(stored.tensor, [&](const void* page, uint64_t offset, uint64_t bytes) {
      const auto* from = static_cast<const float*>(page);
      const uint64_t first = offset / sizeof(float);
      each_transposed(rows, columns, first, bytes / sizeof(float),
                      [&](uint64_t i, uint64_t to) { out[to] = from[i - first]; });
    });
  }

  const TensorLayout layout_;
  const bool transposed_;
};

class GatherStored final : public Kernel {
 public:
  explicit GatherStored(const NodeInfo& node)
      : table_(make_layout(node.require_int("dtype"), node.require_shape("table"))) {
    if (table_.shape.rank() == 0) throw Error("the table is a scalar and has no rows");
  }

  void compute(Context& context) override {
    const Stored stored(context, 0);
    const Tensor indices = context.input(1);
    if (stored.bytes() != table_.bytes)
      throw Error("the stored tensor has " + std::to_string(stored.bytes()) + " bytes, but the table " +
                  std::to_string(table_.bytes));
    const int64_t row_count = table_.shape.data()[0];
    const uint64_t row_bytes = row_count == 0 ? 0 : table_.bytes / static_cast<uint64_t>(row_count);
    const std::vector<int64_t> rows = read_rows(indices, row_count);
    auto* out = static_cast<unsigned char*>(context.output(0, gathered(indices.layout.shape)));
    const std::vector<size_t> order = by_row(rows);
    for (size_t i = 0; i < order.size(); ++i) {
      unsigned char* const to = out + order[i] * row_bytes;
      if (i != 0 && rows[order[i]] == rows[order[i - 1]])
        std::memcpy(to, out + order[i - 1] * row_bytes, row_bytes);
      else
        stored.store->read(stored.tensor, static_cast<uint64_t>(rows[order[i]]) * row_bytes, to, row_bytes);
    }
  }

 private:
  // The indices' shape, and behind it a row's.
  Shape gathered(const Shape& indices) const {
    Shape shape(indices.rank() + table_.shape.rank() - 1);
    std::copy_n(indices.data(), indices.rank(), shape.data());
    std::copy(table_.shape.data() + 1, table_.shape.data() + table_.shape.rank(), shape.data() + indices.rank());
    return shape;
  }

  const TensorLayout table_;
};

Tensor require_gradient(const Context& context) {
  const Tensor gradient = context.input(0);
  if (gradient.layout.dtype != kFloat)
    throw Error("the gradient is of element type " + std::to_string(gradient.layout.dtype) + ", but must be float");
  return gradient;
}

// A part of a parameter's gradient, from an element on, which a node may make transposed.
class GradientPart {
 public:
  explicit GradientPart(const NodeInfo& node)
      : offset_(node.require_nonnegative("offset")), transposed_(is_transposed(node)) {}

  uint64_t offset() const { return offset_; }

  Tensor require(const Context& context) const {
    const Tensor gradient = require_gradient(context);
    if (transposed_ && gradient.layout.shape.rank() != 2) throw Error("only a matrix can be a transposed gradient");
    return gradient;
  }

  // The elements that belong to a part of the parameter: the gradient's own, or in `part.spare`.
  const float* elements(const Tensor& gradient, const ParameterStore::Part& part) const {
    const auto* from = static_cast<const float*>(gradient.data);
    const uint64_t first = part.first - offset_;
    if (!transposed_) return from + first;
    const int64_t* const sizes = gradient.layout.shape.data();
    each_transposed(static_cast<uint64_t>(sizes[1]), static_cast<uint64_t>(sizes[0]), first, part.count,
                    [&](uint64_t i, uint64_t place) { part.spare[i - first] = from[place]; });
    return part.spare;
  }

 private:
  const uint64_t offset_;
  const bool transposed_;
};

template <class Kind>
class UpdateStored final : public Kernel {
 public:
  explicit UpdateStored(const NodeInfo& node) : part_(node) {}

  void compute(Context& context) override {
    const Tensor gradient = part_.require(context);
    const float* rates = read_floats(context, 1, Kind::kRates);
    const Stored stored(context, 2);
    stored.store->update(stored.tensor, Kind::kTensors, part_.offset(), gradient.elements(), nullptr,
                         [&](const ParameterStore::Part& part) {
                           Kind::run(part.tensors, part_.elements(gradient, part), part.count, rates);
                         });
    context.output_true();
  }

 private:
  const GradientPart part_;
};

int64_t require_rows(const NodeInfo& node) {
  const int64_t rows = node.require_int("rows");
  if (rows < 0) throw Error("a table of " + std::to_string(rows) + " rows cannot be");
  return rows;
}

template <class Kind>
class UpdateRowsStored final : public Kernel {
 public:
  explicit UpdateRowsStored(const NodeInfo& node) : row_count_(require_rows(node)) {
    int64_t value = 0;
    is_deferred_ = node.optional_int("deferred", &value) && value != 0;
  }

  void compute(Context& context) override {
    const Tensor gradient = require_gradient(context);
    const float* rates = read_floats(context, 1, Kind::kRates);
    const Stored stored(context, 2);
    const uint64_t elements = stored.bytes() / sizeof(float);
    const GivenRows rows(gradient, context.input(3), elements, row_count_);
    const auto* const given = static_cast<const float*>(gradient.data);
    const auto change = [&](const ParameterStore::Part& part) {
      rows.fill(part.spare, given, part.first, part.count);
      Kind::run(part.tensors, part.spare, part.count, rates);
    };
    if (is_deferred_)
      stored.store->update_pages(stored.tensor, Kind::kTensors, rows.pages(kParameterPageBytes / sizeof(float)), rates,
                                 change);
    else
      stored.store->update(stored.tensor, Kind::kTensors, 0, elements, nullptr, change);
    context.output_true();
  }

 private:
  const int64_t row_count_;
  bool is_deferred_ = false;
};

// Where a parameter's gradient is collected: the tensor behind those that the optimizer keeps for it.
class GradientStore {
 public:
  explicit GradientStore(const NodeInfo& node) : moments_(node.require_nonnegative("moments")) {}

  // Adds `count` elements of a gradient, from `first` on, or puts them there; `from` gives those of a part.
  template <class From>
  void collect(const Stored& stored, bool overwrite, uint64_t first, uint64_t count, From from) const {
    const auto change = [&](const ParameterStore::Part& part) {
      const float* const given = from(part);
      float* const sum = part.tensors[0];
      if (overwrite)
        std::copy_n(given, part.count, sum);
      else
        for (uint64_t i = 0; i < part.count; ++i) sum[i] += given[i];
    };
    stored.store->update(stored.tensor + 1 + moments_, 1, first, count, nullptr, change, overwrite);
  }

 private:
  const uint64_t moments_;
};

class AccumulateStored final : public Kernel {
 public:
  explicit AccumulateStored(const NodeInfo& node) : part_(node), store_(node) {}

  void compute(Context& context) override {
    const Tensor gradient = part_.require(context);
    store_.collect(Stored(context, 1), read_flag(context, 2), part_.offset(), gradient.elements(),
                   [&](const ParameterStore::Part& part) { return part_.elements(gradient, part); });
    context.output_true();
  }

 private:
  const GradientPart part_;
  const GradientStore store_;
};

class AccumulateRowsStored final : public Kernel {
 public:
  explicit AccumulateRowsStored(const NodeInfo& node) : row_count_(require_rows(node)), store_(node) {}

  void compute(Context& context) override {
    const Tensor gradient = require_gradient(context);
    const Stored stored(context, 1);
    const uint64_t elements = stored.bytes() / sizeof(float);
    const GivenRows rows(gradient, context.input(2), elements, row_count_);
    const auto* const given = static_cast<const float*>(gradient.data);
    store_.collect(stored, read_flag(context, 3), 0, elements, [&](const ParameterStore::Part& part) {
      rows.fill(part.spare, given, part.first, part.count);
      return part.spare;
    });
    context.output_true();
  }

 private:
  const int64_t row_count_;
  const GradientStore store_;
};

}  // namespace

const OpDefinition kLoadStored{"LoadStored",         1, {kUndefined}, Sharing::kNone, create<LoadStored>,
                               infer_from_attributes};
const OpDefinition kGatherStored{"GatherStored", 1, {kUndefined}, Sharing::kNone, create<GatherStored>, infer_nothing};
const OpDefinition kUpdateStoredSgd = update_op<UpdateStored<Sgd>>("UpdateStoredSgd");
const OpDefinition kUpdateStoredMomentum = update_op<UpdateStored<Momentum>>("UpdateStoredMomentum");
const OpDefinition kUpdateStoredAdam = update_op<UpdateStored<Adam>>("UpdateStoredAdam");
const OpDefinition kUpdateRowsStoredSgd = update_op<UpdateRowsStored<Sgd>>("UpdateRowsStoredSgd");
const OpDefinition kUpdateRowsStoredMomentum = update_op<UpdateRowsStored<Momentum>>("UpdateRowsStoredMomentum");
const OpDefinition kUpdateRowsStoredAdam = update_op<UpdateRowsStored<Adam>>("UpdateRowsStoredAdam");
const OpDefinition kAccumulateStored = update_op<AccumulateStored>("AccumulateStored");
const OpDefinition kAccumulateRowsStored = update_op<AccumulateRowsStored>("AccumulateRowsStored");

}  // namespace poet
