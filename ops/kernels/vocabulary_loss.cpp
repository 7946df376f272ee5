// The loss of a language model, whose scores are never whole in memory.
//
//   VocabularyLoss(x, labels, matrix..., bias?, cap?, after...) -> loss
//   VocabularyLossGradient(x, labels, matrix..., bias?, cap?, after...) -> loss, dX
//       The mean of the cross entropy of scores with labels, and its gradient by x. Scores are x, whose rows are
//       tokens, times the matrix, which has a row for each word or, where `transposed` is 0, a column; plus the bias,
//       where `biased` is 1; and where `capped` is 1, cap * tanh(score / cap) has a score's place. Labels are int32 or
//       int64, one for each token; where `ignoring` is 1, those that are `ignore_index` do not count: nothing is
//       computed of tokens before the first that counts, such as a prompt, and behind the last one. Where none counts,
//       the loss is 0, and so is the gradient.
//
// The matrix is float, or codes, scales and, where `zeroed` is 1, zeros of `bits` bits (quantized_rows.h); or handles
// of what is in a store. Scores are made of some words at a time (`panel_rows`, panels.h) by the runtime's Gemm. Each
// token has a running maximum, a sum of powers, and of dX the sum of words that these weigh; where the maximum rises,
// the sums before shrink (Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867).
#include <cmath>
#include <limits>

#include "kernels/softmax_rows.h"
#include "kernels/vocabulary.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What is known of a token's scores so far. The sum is of e to the power of each, less the maximum.
struct Token {
  double sum;
  float most;
  float chosen;  // score of its label
};

// Like raise_all, of capped scores; leaves each power times the slope.
POET_WIDE double raise_capped(float* scores, uint64_t count, float off, float cap) {
  float sums[kGroup] = {};
  uint64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    float block[kGroup], slopes[kGroup];
    for (uint64_t k = 0; k < kGroup; ++k) block[k] = exponential(scores[i + k] - off);
    for (uint64_t k = 0; k < kGroup; ++k) slopes[k] = slope_of_cap(scores[i + k], cap);
    for (uint64_t k = 0; k < kGroup; ++k) sums[k] += block[k];
    for (uint64_t k = 0; k < kGroup; ++k) scores[i + k] = block[k] * slopes[k];
  }
  double rest = 0;
  for (; i < count; ++i) {
    const float power = exponential(scores[i] - off);
    rest += static_cast<double>(power);
    scores[i] = power * slope_of_cap(scores[i], cap);
  }
  return total<kGroup>(sums) + rest;
}

// Turns the sum of weighed words into a gradient: less the word of the label, and of so many tokens.
struct Factors {
  float share;  // of the sum
  float own;    // of the label's word
  float all;
};

POET_WIDE void finish_all(float* d_x, const float* word, uint64_t count, const Factors& of) {
  const float share = of.share, own = of.own, all = of.all;
  write_each(d_x, count, [=](uint64_t i) { return (d_x[i] * share - word[i] * own) * all; });
}

// Labels of any type, checked, from the first that counts to the last; one between that does not count is kNone.
class Labels {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  Labels(const Tensor& tensor, uint64_t tokens, uint64_t words, bool is_ignoring, int64_t ignored)
      : data_(tensor.data), is_long_(tensor.layout.dtype == kInt64), is_ignoring_(is_ignoring), ignored_(ignored) {
    if ((!is_long_ && tensor.layout.dtype != kInt32) || tensor.elements() != tokens)
      throw Error("labels " + described(tensor) + " must be one integer for each of " + std::to_string(tokens) +
                  " tokens");
    for (uint64_t t = 0; t < tokens; ++t) {
      const int64_t label = get(t);
      if (is_ignoring_ && label == ignored_) continue;
      if (static_cast<uint64_t>(label) >= words)
        throw Error("label " + std::to_string(label) + " is none of " + std::to_string(words) + " words");
      if (counted_++ == 0) first_ = t;
      end_ = t + 1;
    }
  }

  uint64_t first() const { return first_; }
  uint64_t count() const { return end_ - first_; }

  uint64_t operator[](uint64_t token) const {
    const int64_t label = get(first_ + token);
    return is_ignoring_ && label == ignored_ ? kNone : static_cast<uint64_t>(label);
  }
  // How many count, or 1 where none does.
  uint64_t divisor() const { return std::max<uint64_t>(counted_, 1); }

 private:
  int64_t get(uint64_t token) const {
    return is_long_ ? static_cast<const int64_t*>(data_)[token] : static_cast<const int32_t*>(data_)[token];
  }

  const void* data_;
  const bool is_long_, is_ignoring_;
  const int64_t ignored_;
  uint64_t counted_ = 0, first_ = 0, end_ = 0;
};

class VocabularyLoss : public Kernel {
 public:
  explicit VocabularyLoss(const NodeInfo& node) : VocabularyLoss(node, false) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    const Shape& shape = x.layout.shape;
    const uint64_t width = shape_.width();
    if (x.layout.dtype != kFloat || shape.rank() == 0 || row_width(x) != width)
      throw Error("x is " + described(x) + ", but must be float and end in " + std::to_string(width));
    const uint64_t tokens = x.elements() / width;
    const Labels labels(context.input(1), tokens, shape_.words(), is_ignoring_, ignored_);
    Vocabulary words(context, kMatrix, shape_);
    float* const bias = is_biased_ ? read_floats(context, kMatrix + shape_.inputs(), shape_.words()) : nullptr;
    const float* const cap =
        is_capped_ ? read_floats(context, kMatrix + shape_.inputs() + size_t{is_biased_}, 1) : nullptr;
    auto* const loss = static_cast<float*>(context.output(0, Shape(0)));
    float* const d_x = has_gradient_ ? static_cast<float*>(context.output(1, shape)) : nullptr;
    *loss = 0;
    if (d_x != nullptr) {
      std::fill_n(d_x, labels.first() * width, 0.0F);
      std::fill(d_x + (labels.first() + labels.count()) * width, d_x + tokens * width, 0.0F);
    }
    const uint64_t kept = words.is_stored() ? tokens : 1;
    const Room room(context, words, shape_, tokens, has_gradient_ ? kept : 0);  // as large in every step
    if (labels.count() == 0) return;
    std::fill_n(room.tokens, labels.count(), Token{0, kNothing, 0});
    const Operands operands{static_cast<float*>(x.data) + labels.first() * width, labels.count(), bias, cap,
                            d_x == nullptr ? nullptr : d_x + labels.first() * width};
    pass(context, words, labels, operands, room);
    if (has_gradient_) finish(words, labels, operands, room);
    double sum = 0;
    for (uint64_t t = 0; t < labels.count(); ++t) {
      const Token& token = room.tokens[t];
      if (labels[t] == Labels::kNone) continue;
      sum += std::log(token.sum) + (static_cast<double>(token.most) - static_cast<double>(token.chosen));
    }
    *loss = static_cast<float>(sum / static_cast<double>(labels.divisor()));
  }

 protected:
  VocabularyLoss(const NodeInfo& node, bool has_gradient)
      : shape_(node),
        is_biased_(node.require_nonnegative("biased") != 0),
        is_capped_(read_optional(node, "capped")),
        is_ignoring_(node.require_nonnegative("ignoring") != 0),
        ignored_(node.require_int("ignore_index")),
        has_gradient_(has_gradient),
        scores_(node, RuntimeProduct::Operator::kGemm, false, shape_.has_rows, is_biased_),
        first_(node, RuntimeProduct::Operator::kGemm, false, !shape_.has_rows, false),
        next_(node, RuntimeProduct::Operator::kGemm, false, !shape_.has_rows, true) {}

 private:
  static constexpr size_t kMatrix = 2;  // its first input

  static bool read_optional(const NodeInfo& node, const char* attribute) {
    int64_t value = 0;
    return node.optional_int(attribute, &value) && value != 0;
  }

  struct Operands {
    float* x;
    uint64_t tokens;
    float* bias;
    const float* cap;
    float* d_x;
  };

  // poet_onnx/graph/operators/vocabulary.py has the same sizes.
  struct Room {
    Room(const Context& context, Vocabulary& words, const VocabularyShape& shape, uint64_t count, uint64_t kept)
        : memory(context.api(),
                 count * sizeof(Token) +
                     (count * shape.panels.most_rows() + kept * shape.width() + words.panel_floats()) * sizeof(float) +
                     words.spare_bytes()),
          tokens(reinterpret_cast<Token*>(memory.floats())),
          scores(reinterpret_cast<float*>(tokens + count)),
          chosen(scores + count * shape.panels.most_rows()) {
      float* const panel = chosen + kept * shape.width();
      words.take(panel, reinterpret_cast<unsigned char*>(panel + words.panel_floats()));
    }
    const Workspace memory;
    Token* const tokens;
    float* const scores;
    float* const chosen;  // words of labels: one, or all where they come with their panels
  };

  void pass(const Context& context, Vocabulary& words, const Labels& labels, const Operands& of,
            const Room& room) const {
    const uint64_t width = shape_.width();
    shape_.panels.each([&](Panel panel) {
      float* const matrix = words.panel(context.workers(), panel);
      const Floats some =
          shape_.has_rows ? Floats::of(matrix, panel.rows, width) : Floats::of(matrix, width, panel.rows);
      const Floats scores = Floats::of(room.scores, of.tokens, panel.rows);
      const Floats added = Floats::of(of.bias == nullptr ? nullptr : of.bias + panel.first, 1, panel.rows);
      scores_.run(context, Floats::of(of.x, of.tokens, width), some, of.bias == nullptr ? nullptr : &added, scores);
      each_range(context.workers(), of.tokens, panel.rows, [&](uint64_t first, uint64_t count) {
        for (uint64_t t = first; t < first + count; ++t)
          take(panel, labels[t], of.cap, room.scores + t * panel.rows, room.tokens[t],
               of.d_x == nullptr || panel.first == 0 ? nullptr : of.d_x + t * width);
      });
      if (of.d_x == nullptr) return;
      if (words.is_stored()) keep(panel, matrix, labels, of.tokens, room);
      const Floats sum = Floats::of(of.d_x, of.tokens, width);
      if (panel.first == 0)
        first_.run(context, scores, some, nullptr, sum);
      else
        next_.run(context, scores, some, &sum, sum);
    });
  }

  // Takes a panel's scores of a token, and leaves their powers. `d_x` shrinks as the sum does.
  void take(Panel panel, uint64_t label, const float* cap, float* scores, Token& token, float* d_x) const {
    if (cap != nullptr) cap_all(scores, panel.rows, *cap);
    if (label - panel.first < panel.rows) token.chosen = scores[label - panel.first];
    const float most = std::max(token.most, most_of(scores, panel.rows));
    if (most > token.most) {
      const float factor = exponential(token.most - most);
      token.sum *= static_cast<double>(factor);
      if (d_x != nullptr) scale_all(d_x, shape_.width(), factor);
      token.most = most;
    }
    const float off = most == kNothing ? 0 : most;
    token.sum += cap == nullptr ? raise_all(scores, panel.rows, off) : raise_capped(scores, panel.rows, off, *cap);
  }

  void keep(Panel panel, const float* matrix, const Labels& labels, uint64_t tokens, const Room& room) const {
    const uint64_t width = shape_.width();
    for (uint64_t t = 0; t < tokens; ++t)
      if (labels[t] - panel.first < panel.rows)
        std::copy_n(matrix + (labels[t] - panel.first) * width, width, room.chosen + t * width);
  }

  void finish(const Vocabulary& words, const Labels& labels, const Operands& of, const Room& room) const {
    const uint64_t width = shape_.width();
    const float factor = 1.0F / static_cast<float>(labels.divisor());
    for (uint64_t t = 0; t < of.tokens; ++t) {
      const Token& token = room.tokens[t];
      float* const row = of.d_x + t * width;
      if (labels[t] == Labels::kNone) {
        std::fill_n(row, width, 0.0F);
        continue;
      }
      float* const word = room.chosen + (words.is_stored() ? t * width : 0);
      if (!words.is_stored()) words.word(labels[t], word);
      const float own = of.cap == nullptr ? 1 : slope_of_cap(token.chosen, *of.cap);
      finish_all(row, word, width, {static_cast<float>(1 / token.sum), own, factor});
    }
  }

  const VocabularyShape shape_;
  const bool is_biased_, is_capped_, is_ignoring_;
  const int64_t ignored_;
  const bool has_gradient_;
  const RuntimeProduct scores_, first_, next_;
};

class VocabularyLossGradient final : public VocabularyLoss {
 public:
  explicit VocabularyLossGradient(const NodeInfo& node) : VocabularyLoss(node, true) {}
};

}  // namespace

const OpDefinition kVocabularyLoss{"VocabularyLoss", 1, {kFloat}, Sharing::kNone, create<VocabularyLoss>,
                                   infer_nothing};
const OpDefinition kVocabularyLossGradient{
    "VocabularyLossGradient", 2, {kFloat, kFloat}, Sharing::kNone, create<VocabularyLossGradient>, infer_nothing};

}  // namespace poet
