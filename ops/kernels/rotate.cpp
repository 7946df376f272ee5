// Rotary embedding (Su et al. 2021, arxiv.org/abs/2104.09864): pairs of numbers of a row are rotated by the row's
// angles.
//
//   Rotate(x, cos, sin) -> y
//
// The first `rotated` numbers of a row, along x's last axis, are pairs: one number of the first half with one of the
// second, or, where `interleaved`, neighbours. A pair (a, b) becomes (a cos - b sin, b cos + a sin), with the cosine
// and the sine of each one's place; where `inverse`, what is the gradient, (a cos + b sin', b cos' - a sin). The rest
// of a row stays as it is.
//
// cos and sin have one shape: a row has as many numbers as are rotated, or half of them, for a pair each; before it
// sizes are those of x from behind, or 1 for all alike. All are float. y may take x's buffer.
//
// Where `heads` is not 0, x is [..., heads x width] and is taken for [..., heads, width].
#include <algorithm>
#include <cstring>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

// The tables' row of a row of x.
struct Angles {
  const float* cos;
  const float* sin;
  uint64_t other;  // from a pair's first number on to the second's, in the tables
};

// A pair's numbers, with the cosine and sine of each one's place.
template <bool kInverse>
inline void turn(float* a, float* b, float cos_a, float cos_b, float sin_a, float sin_b) {
  const float first = *a, second = *b;
  if constexpr (kInverse) {
    *a = first * cos_a + second * sin_b;
    *b = second * cos_b - first * sin_a;
  } else {
    *a = first * cos_a - second * sin_a;
    *b = second * cos_b + first * sin_b;
  }
}

template <bool kInverse>
inline void turn_halves(float* y, const float* x, const Angles& by, uint64_t half) {
  uint64_t i = 0;
  for (; i + kGroup <= half; i += kGroup) {
    float first[kGroup], second[kGroup];
    for (uint64_t k = 0; k < kGroup; ++k) {
      first[k] = x[i + k];
      second[k] = x[half + i + k];
      turn<kInverse>(first + k, second + k, by.cos[i + k], by.cos[by.other + i + k], by.sin[i + k],
                     by.sin[by.other + i + k]);
    }
    for (uint64_t k = 0; k < kGroup; ++k) y[i + k] = first[k];
    for (uint64_t k = 0; k < kGroup; ++k) y[half + i + k] = second[k];
  }
  for (; i < half; ++i) {
    float first = x[i], second = x[half + i];
    turn<kInverse>(&first, &second, by.cos[i], by.cos[by.other + i], by.sin[i], by.sin[by.other + i]);
    y[i] = first;
    y[half + i] = second;
  }
}

template <bool kInverse>
inline void turn_neighbours(float* y, const float* x, const Angles& by, uint64_t half) {
  const uint64_t step = by.other == 0 ? 1 : 2;
  for (uint64_t i = 0; i < half; ++i) {
    const uint64_t place = step * i;
    float first = x[2 * i], second = x[2 * i + 1];
    turn<kInverse>(&first, &second, by.cos[place], by.cos[place + by.other], by.sin[place], by.sin[place + by.other]);
    y[2 * i] = first;
    y[2 * i + 1] = second;
  }
}

using Turn = void (*)(float* y, const float* x, const Angles& by, uint64_t half);

POET_WIDE void halves(float* y, const float* x, const Angles& by, uint64_t half) { turn_halves<false>(y, x, by, half); }
POET_WIDE void halves_back(float* y, const float* x, const Angles& by, uint64_t half) {
  turn_halves<true>(y, x, by, half);
}
POET_WIDE void neighbours(float* y, const float* x, const Angles& by, uint64_t half) {
  turn_neighbours<false>(y, x, by, half);
}
POET_WIDE void neighbours_back(float* y, const float* x, const Angles& by, uint64_t half) {
  turn_neighbours<true>(y, x, by, half);
}

// Which row of the tables belongs to each row of x.
class TableRows {
 public:
  // Throws Error where the tables' shape does not fit.
  TableRows(const Shape& x, const Shape& table) : rank_(x.rank() - 1), sizes_(rank_), steps_(rank_) {
    if (table.rank() == 0 || table.rank() > x.rank()) refuse(x, table);
    const size_t missing = x.rank() - table.rank();
    int64_t step = 1;
    for (size_t axis = rank_; axis-- > 0;) {
      sizes_.data()[axis] = x.data()[axis];
      const int64_t size = axis < missing ? 1 : table.data()[axis - missing];
      if (size != 1 && size != x.data()[axis]) refuse(x, table);
      steps_.data()[axis] = size == 1 ? 0 : step;
      step *= size;
    }
  }

  // Calls body(row, table row) for rows of x, one behind the other.
  template <typename Body>
  void each(uint64_t row, uint64_t count, const Body& body) const {
    Shape place(rank_);
    int64_t at = 0;
    uint64_t rest = row;
    for (size_t axis = rank_; axis-- > 0;) {
      const auto size = static_cast<uint64_t>(sizes_.data()[axis]);
      place.data()[axis] = static_cast<int64_t>(rest % size);
      at += place.data()[axis] * steps_.data()[axis];
      rest /= size;
    }
    for (const uint64_t end = row + count; row < end; ++row) {
      body(row, static_cast<uint64_t>(at));
      for (size_t axis = rank_; axis-- > 0;) {
        at += steps_.data()[axis];
        if (++place.data()[axis] < sizes_.data()[axis]) break;
        at -= steps_.data()[axis] * sizes_.data()[axis];
        place.data()[axis] = 0;
      }
    }
  }

 private:
  [[noreturn]] static void refuse(const Shape& x, const Shape& table) {
    throw Error("tables of shape " + to_string(table) + " do not fit rows of shape " + to_string(x));
  }

  size_t rank_;
  Shape sizes_;
  Shape steps_;
};

class Rotate final : public Kernel {
 public:
  explicit Rotate(const NodeInfo& node)
      : rotated_(node.require_nonnegative("rotated")), heads_(node.require_nonnegative("heads")) {
    const bool is_back = node.require_int("inverse") != 0;
    is_interleaved_ = node.require_int("interleaved") != 0;
    turn_ = is_interleaved_ ? (is_back ? neighbours_back : neighbours) : (is_back ? halves_back : halves);
    if (rotated_ == 0 || rotated_ % 2 != 0)
      throw Error("the attribute 'rotated' is " + std::to_string(rotated_) + ", but must be an even number above 0");
  }

  void compute(Context& context) override {
    const Tensor input = context.input(0), cosines = context.input(1), sines = context.input(2);
    const Shape shape = rows_of(input.layout.shape);
    const Shape& table = cosines.layout.shape;
    for (const Tensor* tensor : {&input, &cosines, &sines})
      if (tensor->layout.dtype != kFloat)
        throw Error("an input is of element type " + std::to_string(tensor->layout.dtype) + ", but must be float");
    const uint64_t width = last(shape), angles = last(table), half = rotated_ / 2;
    if (width < rotated_ || (angles != rotated_ && angles != half) || sines.layout.shape != table)
      throw Error("inputs of shapes " + to_string(shape) + ", " + to_string(table) + " and " +
                  to_string(sines.layout.shape) + " do not fit: " + std::to_string(rotated_) +
                  " numbers of a row are rotated");
    const TableRows rows(shape, table);
    const auto* const x = static_cast<const float*>(input.data);
    const auto* const cos = static_cast<const float*>(cosines.data);
    const auto* const sin = static_cast<const float*>(sines.data);
    auto* const y = static_cast<float*>(context.output(0, input.layout.shape));
    const uint64_t other = angles == half ? 0 : (is_interleaved_ ? 1 : half);
    each_range(context.workers(), input.elements() / width, width, [&](uint64_t first, uint64_t count) {
      rows.each(first, count, [&](uint64_t row, uint64_t at) {
        const float* const from = x + row * width;
        float* const to = y + row * width;
        turn_(to, from, {cos + at * angles, sin + at * angles, other}, half);
        if (to != from && width != rotated_)
          std::memcpy(to + rotated_, from + rotated_, (width - rotated_) * sizeof(float));
      });
    });
  }

 private:
  // The shape of x with a row for each head.
  Shape rows_of(const Shape& x) const {
    if (heads_ == 0) return x;
    if (x.rank() == 0 || last(x) % heads_ != 0)
      throw Error("input 0 of shape " + to_string(x) + " has no rows of " + std::to_string(heads_) + " heads");
    Shape shape(x.rank() + 1);
    std::copy_n(x.data(), x.rank() - 1, shape.data());
    shape.data()[x.rank() - 1] = static_cast<int64_t>(heads_);
    shape.data()[x.rank()] = static_cast<int64_t>(last(x) / heads_);
    return shape;
  }

  static uint64_t last(const Shape& shape) {
    return shape.rank() == 0 ? 0 : static_cast<uint64_t>(shape.data()[shape.rank() - 1]);
  }

  const uint64_t rotated_, heads_;
  bool is_interleaved_;
  Turn turn_;
};

}  // namespace

const OpDefinition kRotate{"Rotate", 1, {kFloat}, Sharing::kAllowed, create<Rotate>, infer_from_input};

}  // namespace poet
