// ComparePanels(any) -> same: whether a product by panels (panels.h) has the bits of the whole one, on this machine, in
// this runtime and with this session's threads.
//
// `product` says which: 0 across, 1 along, 2 the gradient. `samples` is the shape of x without its last axis. The whole
// product is `whole`'s, a number of RuntimeProduct::Operator, on the matrix as it is or, where `transposed` is 1, on
// one that lies transposed; so a gradient may be made. `biased`: a Gemm adds a bias.
#include "kernels/drawn_numbers.h"
#include "kernels/panels.h"
#include "process/heap.h"

namespace poet {
namespace {

class ComparePanels final : public Kernel {
 public:
  explicit ComparePanels(const NodeInfo& node)
      : panels_(node),
        samples_(node.require_shape("samples")),
        product_(node.require_nonnegative("product")),
        is_transposed_(node.require_nonnegative("transposed") != 0),
        is_biased_(node.require_nonnegative("biased") != 0),
        whole_(node, whole_operator(node), product_ == kGradient, transposes_right(), is_biased_),
        across_(node, panels_, is_biased_),
        along_(node, panels_, is_biased_),
        gradient_(node, panels_) {}

  void compute(Context& context) override {
    give_freed_memory_back();  // before a process trains that has no room for it then
    const bool are = product_ == kGradient ? compare_gradients(context) : compare_products(context);
    *static_cast<bool*>(context.output(0, Shape::of(1))) = are;
  }

 private:
  static constexpr uint64_t kAcross = 0, kGradient = 2;
  static constexpr uint64_t kMatrix = 1, kLeft = 2, kRight = 3, kBias = 4;  // salts

  static RuntimeProduct::Operator whole_operator(const NodeInfo& node) {
    const uint64_t number = node.require_nonnegative("whole");
    if (number > static_cast<uint64_t>(RuntimeProduct::Operator::kFusedMatMul))
      throw Error("the attribute 'whole' is " + std::to_string(number) + ", which names no operator");
    return static_cast<RuntimeProduct::Operator>(number);
  }
  // A copy that lies transposed is transposed by the product where the matrix itself is not.
  bool transposes_right() const { return product_ != kGradient && (product_ == kAcross) != is_transposed_; }

  uint64_t sample_count() const {
    uint64_t count = 1;
    for (size_t i = 0; i < samples_.rank(); ++i) count *= static_cast<uint64_t>(samples_.data()[i]);
    return count;
  }

  // Rows of the matrix, from `first` on.
  void draw_rows(uint64_t first, uint64_t rows, float* to) const {
    for (uint64_t i = 0; i < rows * panels_.columns(); ++i) to[i] = number(first * panels_.columns() + i, kMatrix);
  }
  Numbers draw_matrix() const {
    const uint64_t rows = panels_.rows(), columns = panels_.columns();
    Numbers made(rows * columns);
    for (uint64_t row = 0; row < rows; ++row)
      for (uint64_t column = 0; column < columns; ++column)
        made[is_transposed_ ? column * rows + row : row * columns + column] = number(row * columns + column, kMatrix);
    return made;
  }

  Floats with_samples(Numbers& data, uint64_t width) const {
    Shape shape(samples_.rank() + 1);
    std::copy_n(samples_.data(), samples_.rank(), shape.data());
    shape.data()[samples_.rank()] = static_cast<int64_t>(width);
    return {data.data(), shape};
  }

  bool compare_products(const Context& context) const {
    const bool is_across = product_ == kAcross;
    const uint64_t samples = sample_count(), rows = panels_.rows(), columns = panels_.columns();
    const uint64_t width_in = is_across ? columns : rows, width_out = is_across ? rows : columns;
    Numbers x = numbers(samples * width_in, kLeft), bias = numbers(width_out, kBias);
    Numbers expected(samples * width_out);
    {
      Numbers matrix = draw_matrix();
      const Floats right =
          is_transposed_ ? Floats::of(matrix.data(), columns, rows) : Floats::of(matrix.data(), rows, columns);
      const Floats added = Floats::of(bias.data(), 1, width_out);
      whole_.run(context, with_samples(x, width_in), right, is_biased_ ? &added : nullptr,
                 with_samples(expected, width_out));
    }
    Numbers found(samples * width_out), matrix(panels_.most_rows() * columns), spare(panels_.most_rows() * samples);
    float* const given = is_biased_ ? bias.data() : nullptr;
    panels_.each([&](Panel panel) {
      draw_rows(panel.first, panel.rows, matrix.data());
      if (is_across)
        across_.run(context, panel, x.data(), samples, matrix.data(), given, found.data(), spare.data());
      else
        along_.run(context, panel, columns_of(panels_, panel, x.data(), samples, spare.data()), samples, matrix.data(),
                   given, found.data());
    });
    return are_same(expected.data(), found.data(), found.size());
  }

  bool compare_gradients(const Context& context) const {
    const uint64_t samples = sample_count(), rows = panels_.rows(), columns = panels_.columns();
    Numbers left = numbers(samples * rows, kLeft), right = numbers(samples * columns, kRight);
    Numbers expected(rows * columns);
    const Floats tall = Floats::of(left.data(), samples, rows), wide = Floats::of(right.data(), samples, columns);
    if (is_transposed_)
      whole_.run(context, wide, tall, nullptr, Floats::of(expected.data(), columns, rows));
    else
      whole_.run(context, tall, wide, nullptr, Floats::of(expected.data(), rows, columns));
    Numbers found(panels_.most_piece_rows() * columns), spare(panels_.most_rows() * samples);
    bool are = true;
    const auto compare = [&](const Piece& piece) {
      float* const part = columns_of(panels_, piece.rows, left.data(), samples, spare.data());
      gradient_.run(context, piece.rows, part, right.data(), samples, found.data());
      for (uint64_t i = piece.first; i < piece.first + piece.count; ++i) {
        const uint64_t place = is_transposed_ ? i % columns * rows + i / columns : i;
        are = are && are_same(&expected[place], &found[i - piece.rows.first * columns], 1);
      }
    };
    panels_.each([&](Panel panel) { panels_.each_piece(panel, compare); });
    return are;
  }

  const Panels panels_;
  const Shape samples_;
  const uint64_t product_;
  const bool is_transposed_, is_biased_;
  const RuntimeProduct whole_;
  const AcrossPanels across_;
  const AlongPanels along_;
  const GradientPanels gradient_;
};

}  // namespace

const OpDefinition kComparePanels{"ComparePanels", 1, {kBool}, Sharing::kNone, create<ComparePanels>, infer_flag};

}  // namespace poet
