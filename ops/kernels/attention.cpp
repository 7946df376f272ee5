// Attention of several heads, whose scores are never whole in memory, neither now nor for the gradient.
//
//   Attend(q, k, v, numbers, mask?) -> y
//       y = softmax(scale * q k' + mask) v for each head, where `numbers` are (scale, cap); where `capped` is 1,
//       cap * tanh(score / cap) has a scaled score's place before the mask is added.
//   AttendGradient(dY, q, k, v, numbers, mask?) -> dQ, dK, dV
//       the gradients, with scores made again.
//
// All are float. Operands are [batch, heads, tokens, width], or [batch, tokens, heads, width] where the list
// `tokens_first` has a 1 for it, in the order q, k, v, y; where the list `heads` has a number, too, the operand is
// [batch, tokens, heads x width] and has so many heads. A gradient is laid out as its operand. k and v may have fewer
// heads, each of which is for as many neighbouring heads of q. The mask, there where `masked` is 1, is of four sizes,
// of which all but the last may be 1. Where `guarded` is 1, a token that sees none gets zeros.
//
// Scores are made for `block_rows` tokens of a head at a time by the runtime's Gemm, for as many columns as one of them
// sees: where the mask hides all others, their powers are 0.
#include <cmath>
#include <limits>

#include "kernels/linear.h"
#include "kernels/runtime_product.h"
#include "kernels/softmax_rows.h"

namespace poet {
namespace {

constexpr float kHidden = -1e30F;  // of a mask: what is below is as good as minus infinity
constexpr size_t kRank = 4;

// An operand, or its gradient.
struct Heads {
  float* data;
  uint64_t batch, heads, tokens, width;
  bool tokens_first, flat;  // flat: of three sizes, heads one behind the other

  float* row(uint64_t sample, uint64_t head, uint64_t token) const {
    return data +
           (tokens_first ? (sample * tokens + token) * heads + head : (sample * heads + head) * tokens + token) * width;
  }
  Shape shape() const {
    if (flat) return Shape::of(batch, tokens, heads * width);
    return tokens_first ? Shape::of(batch, tokens, heads, width) : Shape::of(batch, heads, tokens, width);
  }
  // Some tokens of a head as a matrix: where they are, or copied.
  float* matrix(uint64_t sample, uint64_t head, uint64_t first, uint64_t count, float* copy) const {
    if (!tokens_first) return row(sample, head, first);
    for (uint64_t t = 0; t < count; ++t) std::copy_n(row(sample, head, first + t), width, copy + t * width);
    return copy;
  }
  // Where such a matrix is to be written, and what brings it from there.
  float* place(uint64_t sample, uint64_t head, uint64_t first, float* copy) const {
    return tokens_first ? copy : row(sample, head, first);
  }
  void put(uint64_t sample, uint64_t head, uint64_t first, uint64_t count, const float* made) const {
    if (!tokens_first) return;
    for (uint64_t t = 0; t < count; ++t) std::copy_n(made + t * width, width, row(sample, head, first + t));
  }
};

// What is added to scores.
class Mask {
 public:
  Mask() = default;
  Mask(const Tensor& tensor, size_t index, const Heads& q, uint64_t columns)
      : data_(static_cast<const float*>(tensor.data)) {
    const uint64_t wanted[kRank] = {q.batch, q.heads, q.tokens, columns};
    const Shape& shape = tensor.layout.shape;
    bool fits = tensor.layout.dtype == kFloat && shape.rank() == kRank;
    uint64_t stride = 1;
    for (size_t i = kRank; fits && i-- > 0;) {
      const auto size = static_cast<uint64_t>(shape.data()[i]);
      fits = size == wanted[i] || (size == 1 && i + 1 < kRank);
      strides_[i] = size == 1 ? 0 : stride;
      stride *= size;
    }
    if (!fits)
      throw Error("input " + std::to_string(index) + ", the mask, is " + described(tensor) +
                  ", but must be float and fit scores of " + std::to_string(q.batch) + ", " + std::to_string(q.heads) +
                  ", " + std::to_string(q.tokens) + " and " + std::to_string(columns));
  }

  const float* row(uint64_t sample, uint64_t head, uint64_t token) const {
    return data_ == nullptr ? nullptr : data_ + sample * strides_[0] + head * strides_[1] + token * strides_[2];
  }

  // How many columns some tokens see at most; all of them where a token sees none, for then all count alike.
  uint64_t seen(uint64_t sample, uint64_t head, uint64_t first, uint64_t count, uint64_t columns) const {
    if (data_ == nullptr) return columns;
    uint64_t most = 0;
    for (uint64_t t = first; t < first + count; ++t) {
      const float* const hides = row(sample, head, t);
      uint64_t end = columns;
      while (end != 0 && hides[end - 1] < kHidden) --end;
      if (end == 0) return columns;
      most = std::max(most, end);
    }
    return most;
  }

 private:
  const float* data_ = nullptr;
  uint64_t strides_[kRank] = {};
};

class Attention : public Kernel {
 public:
  explicit Attention(const NodeInfo& node)
      : block_rows_(node.require_nonnegative("block_rows")),
        tokens_first_(node.require_ints("tokens_first")),
        heads_(node.require_ints("heads")),
        is_capped_(require_flag(node, "capped")),
        is_masked_(require_flag(node, "masked")),
        is_guarded_(require_flag(node, "guarded")),
        scores_(node, RuntimeProduct::Operator::kGemm, false, true, false),
        values_(node, RuntimeProduct::Operator::kGemm, false, false, false) {
    if (block_rows_ == 0 || tokens_first_.size() != kRank || heads_.size() != kRank)
      throw Error("'block_rows' is " + std::to_string(block_rows_) + ", 'tokens_first' has " +
                  std::to_string(tokens_first_.size()) + " and 'heads' " + std::to_string(heads_.size()) +
                  " numbers, but they must be positive and 4");
    for (size_t i = 0; i < kRank; ++i)
      if (heads_[i] < 0 || (heads_[i] != 0 && tokens_first_[i] == 0))
        throw Error("'heads' is " + std::to_string(heads_[i]) + " at place " + std::to_string(i) +
                    ", but must be 0 where tokens are not first, and never below 0");
  }

 protected:
  enum Operand : size_t { kQ, kK, kV, kY };

  // What a call reads, from input `first` on.
  struct Given {
    Heads q, k, v;
    Mask mask;
    SoftmaxNumbers numbers;
    uint64_t group() const { return q.heads / k.heads; }
  };

  Given read(const Context& context, size_t first) const {
    Given given{heads(context, first, kQ), heads(context, first + 1, kK), heads(context, first + 2, kV), {}, {}};
    const Heads &q = given.q, &k = given.k, &v = given.v;
    if (q.batch != k.batch || k.batch != v.batch || k.heads != v.heads || k.tokens != v.tokens || q.width != k.width ||
        k.heads == 0 || q.heads % k.heads != 0)
      throw Error("q " + to_string(q.shape()) + ", k " + to_string(k.shape()) + " and v " + to_string(v.shape()) +
                  " do not belong together");
    const float* const numbers = read_floats(context, first + 3, 2);
    given.numbers = {numbers[0], is_capped_ ? numbers[1] : 0.0F, is_guarded_};
    if (is_masked_) given.mask = Mask(context.input(first + 4), first + 4, q, k.tokens);
    return given;
  }

  Heads heads(const Context& context, size_t index, Operand operand) const {
    const Tensor tensor = context.input(index);
    const Shape& shape = tensor.layout.shape;
    const bool flat = heads_[operand] != 0, first = tokens_first_[operand] != 0;
    if (tensor.layout.dtype != kFloat || shape.rank() != (flat ? kRank - 1 : kRank))
      throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be float and of " +
                  (flat ? "three" : "four") + " sizes");
    const auto size = [&](size_t i) { return static_cast<uint64_t>(shape.data()[i]); };
    if (!flat)
      return {Linear::floats(tensor), size(0), size(first ? 2 : 1), size(first ? 1 : 2), size(3), first, false};
    const auto count = static_cast<uint64_t>(heads_[operand]);
    if (size(2) % count != 0)
      throw Error("input " + std::to_string(index) + " of shape " + to_string(shape) + " has no rows of " +
                  std::to_string(count) + " heads");
    return {Linear::floats(tensor), size(0), count, size(1), size(2) / count, true, true};
  }

  // y, of which nobody knows yet where it is.
  Heads result(const Given& of) const {
    const auto count = static_cast<uint64_t>(heads_[kY]);
    if (count != 0 && count != of.q.heads)
      throw Error("'heads' gives the result " + std::to_string(count) + " heads, but q has " +
                  std::to_string(of.q.heads));
    return {nullptr, of.q.batch, of.q.heads, of.q.tokens, of.v.width, tokens_first_[kY] != 0, count != 0};
  }

  uint64_t rows(const Heads& q) const { return std::min(block_rows_, q.tokens); }

  // Calls body(sample, head of k, copies of k and v) for each.
  template <class Body>
  static void each_head(const Given& of, float* room, const Body& body) {
    float* const values = room + of.k.tokens * of.k.width;
    for (uint64_t sample = 0; sample < of.k.batch; ++sample)
      for (uint64_t head = 0; head < of.k.heads; ++head)
        body(sample, head, of.k.matrix(sample, head, 0, of.k.tokens, room),
             of.v.matrix(sample, head, 0, of.v.tokens, values));
  }

  // Some tokens of a head, and how many columns they see.
  struct Block {
    uint64_t sample, head, first, rows, columns;
  };

  template <class Body>
  void each_block_of(const Given& of, uint64_t sample, uint64_t key_head, const Body& body) const {
    for (uint64_t head = key_head * of.group(); head < (key_head + 1) * of.group(); ++head)
      for (uint64_t first = 0; first < of.q.tokens; first += block_rows_) {
        const uint64_t count = std::min(block_rows_, of.q.tokens - first);
        body(Block{sample, head, first, count, of.mask.seen(sample, head, first, count, of.k.tokens)});
      }
  }

  // Writes what each of the tokens gives to each column; slopes of caps, too, where there is room for them.
  void weigh(const Context& context, const Given& of, const Block& block, float* q, float* k, float* scores,
             float* slopes) const {
    scores_.run(context, Floats::of(q, block.rows, of.q.width), Floats::of(k, block.columns, of.k.width), nullptr,
                Floats::of(scores, block.rows, block.columns));
    each_item(context.workers(), block.rows, kFlopsOfAScore * block.columns, [&](uint64_t t) {
      softmax_row(scores + t * block.columns, of.mask.row(block.sample, block.head, block.first + t), block.columns,
                  of.numbers, slopes == nullptr ? nullptr : slopes + t * block.columns);
    });
  }

  static constexpr uint64_t kFlopsOfAScore = 8;  // in units of a block's floats

  const uint64_t block_rows_;
  const std::vector<int64_t> tokens_first_, heads_;
  const bool is_capped_, is_masked_, is_guarded_;
  const RuntimeProduct scores_, values_;
};

class Attend final : public Attention {
 public:
  using Attention::Attention;

  void compute(Context& context) override {
    const Given of = read(context, 0);
    Heads y = result(of);
    y.data = static_cast<float*>(context.output(0, y.shape()));
    // poet_onnx/graph/operators/attention.py has the same sizes.
    const uint64_t most = rows(of.q), columns = of.k.tokens;
    const Workspace memory(
        context.api(),
        (most * (columns + of.q.width + of.v.width) + columns * (of.k.width + of.v.width)) * sizeof(float));
    float *const scores = memory.floats(), *const tokens = scores + most * columns;
    float *const sums = tokens + most * of.q.width, *const room = sums + most * of.v.width;
    each_head(of, room, [&](uint64_t sample, uint64_t key_head, float* k, float* v) {
      each_block_of(of, sample, key_head, [&](const Block& block) {
        float* const q = of.q.matrix(sample, block.head, block.first, block.rows, tokens);
        weigh(context, of, block, q, k, scores, nullptr);
        float* const made = y.place(sample, block.head, block.first, sums);
        values_.run(context, Floats::of(scores, block.rows, block.columns), Floats::of(v, block.columns, of.v.width),
                    nullptr, Floats::of(made, block.rows, of.v.width));
        y.put(sample, block.head, block.first, block.rows, made);
      });
    });
  }
};

class AttendGradient final : public Attention {
 public:
  explicit AttendGradient(const NodeInfo& node)
      : Attention(node), added_(node, RuntimeProduct::Operator::kGemm, true, false, true) {}

  void compute(Context& context) override {
    const Given of = read(context, 1);
    const Heads d_y = heads(context, 0, kY);
    if (d_y.batch != of.q.batch || d_y.heads != of.q.heads || d_y.tokens != of.q.tokens || d_y.width != of.v.width)
      throw Error("dY " + to_string(d_y.shape()) + " does not belong to q " + to_string(of.q.shape()) + " and v " +
                  to_string(of.v.shape()));
    const Heads d_q = output(context, 0, of.q), d_k = output(context, 1, of.k), d_v = output(context, 2, of.v);
    const Room room(context, of, rows(of.q), is_capped_);
    each_head(of, room.operands, [&](uint64_t sample, uint64_t key_head, float* k, float* v) {
      float* const of_k = d_k.place(sample, key_head, 0, room.of_k);
      float* const of_v = d_v.place(sample, key_head, 0, room.of_v);
      std::fill_n(of_k, of.k.tokens * of.k.width, 0.0F);
      std::fill_n(of_v, of.v.tokens * of.v.width, 0.0F);
      each_block_of(of, sample, key_head, [&](const Block& block) {
        float* const q = of.q.matrix(sample, block.head, block.first, block.rows, room.q);
        float* const y = d_y.matrix(sample, block.head, block.first, block.rows, room.y);
        weigh(context, of, block, q, k, room.weights, room.slopes);
        const Floats weights = Floats::of(room.weights, block.rows, block.columns);
        const Floats tokens = Floats::of(y, block.rows, of.v.width);
        const Floats sum_v = Floats::of(of_v, block.columns, of.v.width);
        added_.run(context, weights, tokens, &sum_v, sum_v);
        scores_.run(context, tokens, Floats::of(v, block.columns, of.v.width), nullptr,
                    Floats::of(room.gradient, block.rows, block.columns));
        turn(context, of, block, room);
        float* const made = d_q.place(sample, block.head, block.first, room.of_q);
        values_.run(context, weights, Floats::of(k, block.columns, of.k.width), nullptr,
                    Floats::of(made, block.rows, of.q.width));
        d_q.put(sample, block.head, block.first, block.rows, made);
        const Floats sum_k = Floats::of(of_k, block.columns, of.k.width);
        added_.run(context, weights, Floats::of(q, block.rows, of.q.width), &sum_k, sum_k);
      });
      d_k.put(sample, key_head, 0, of.k.tokens, of_k);
      d_v.put(sample, key_head, 0, of.v.tokens, of_v);
    });
  }

 private:
  // poet_onnx/graph/operators/attention.py has the same sizes.
  struct Room {
    Room(const Context& context, const Given& of, uint64_t most, bool is_capped)
        : memory(context.api(), (most * ((is_capped ? 3 : 2) * of.k.tokens + 2 * of.q.width + of.v.width) +
                                 2 * of.k.tokens * (of.k.width + of.v.width)) *
                                    sizeof(float)),
          weights(memory.floats()),
          gradient(weights + most * of.k.tokens),
          q(gradient + most * of.k.tokens),
          of_q(q + most * of.q.width),
          y(of_q + most * of.q.width),
          operands(y + most * of.v.width),
          of_k(operands + of.k.tokens * (of.k.width + of.v.width)),
          of_v(of_k + of.k.tokens * of.k.width),
          slopes(is_capped ? of_v + of.v.tokens * of.v.width : nullptr) {}
    const Workspace memory;
    float *const weights, *const gradient, *const q, *const of_q, *const y, *const operands, *const of_k, *const of_v;
    float* const slopes;
  };

  static Heads output(Context& context, size_t index, Heads of) {
    of.data = static_cast<float*>(context.output(index, of.shape()));
    return of;
  }

  // Makes of weights the gradient of scores, of which `gradient` is that of weights.
  static void turn(const Context& context, const Given& of, const Block& block, const Room& room) {
    each_item(context.workers(), block.rows, 2 * block.columns, [&](uint64_t t) {
      const uint64_t at = t * block.columns;
      softmax_gradient_row(room.weights + at, room.weights + at, room.gradient + at, block.columns, of.numbers.scale,
                           room.slopes == nullptr ? nullptr : room.slopes + at);
    });
  }

  const RuntimeProduct added_;
};

}  // namespace

const OpDefinition kAttend{"Attend", 1, {kFloat}, Sharing::kNone, create<Attend>, infer_nothing};
const OpDefinition kAttendGradient{
    "AttendGradient", 3, {kFloat, kFloat, kFloat}, Sharing::kNone, create<AttendGradient>, infer_nothing};

}  // namespace poet
