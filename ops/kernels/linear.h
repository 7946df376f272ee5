// What linear layers share whose matrix is in memory panel by panel: sizes of the product, and room for a panel.
#pragma once

#include "kernels/panels.h"
#include "kernels/workspace.h"

namespace poet {

inline bool require_flag(const NodeInfo& node, const char* attribute) {
  return node.require_nonnegative(attribute) != 0;
}

// Of the attributes of Panels and `transposed`.
class Linear {
 public:
  explicit Linear(const NodeInfo& node) : panels(node), is_transposed(require_flag(node, "transposed")) {}

  const Panels panels;
  const bool is_transposed;

  uint64_t width_in() const { return is_transposed ? panels.columns() : panels.rows(); }
  uint64_t width_out() const { return is_transposed ? panels.rows() : panels.columns(); }

  // How many samples a tensor of so many numbers a sample has. Throws Error where it is no such tensor.
  static uint64_t samples(const Tensor& tensor, uint64_t width, const char* name) {
    const Shape& shape = tensor.layout.shape;
    if (tensor.layout.dtype != kFloat || shape.rank() == 0 || row_width(tensor) != width)
      throw Error(std::string(name) + " is " + described(tensor) + ", but must be float and end in " +
                  std::to_string(width));
    return tensor.elements() / width;
  }

  static float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

  static float* output(Context& context, Shape shape, uint64_t width) {
    shape.data()[shape.rank() - 1] = static_cast<int64_t>(width);
    return static_cast<float*>(context.output(0, shape));
  }

  // A panel's rows of the matrix, its columns of another one and, where it is updated, a piece of its gradient; and so
  // many bytes behind them.
  struct Room {
    Room(const Context& context, const Panels& panels, uint64_t samples, bool has_gradient, uint64_t more_bytes = 0)
        : rows(panels.most_rows()),
          memory(context.api(), (rows * (panels.columns() + samples) +
                                 (has_gradient ? panels.most_piece_rows() * panels.columns() : 0)) *
                                        sizeof(float) +
                                    more_bytes),
          matrix(memory.floats()),
          columns(matrix + rows * panels.columns()),
          gradient(columns + rows * samples) {}
    const uint64_t rows;
    const Workspace memory;
    float* const matrix;
    float* const columns;
    float* const gradient;  // or what is behind the others
  };
};

// A layer's product, with the attribute `biased` besides; its matrix comes panel by panel.
class LinearProduct {
 public:
  explicit LinearProduct(const NodeInfo& node)
      : linear(node),
        is_biased_(require_flag(node, "biased")),
        across_(node, linear.panels, is_biased_),
        along_(node, linear.panels, is_biased_) {}

  struct Operands {
    float* x;
    uint64_t samples;
    float* bias;
    float* y;
  };

  // Reads the bias, which is the input of this number, and makes the output.
  Operands operands(Context& context, const Tensor& x, uint64_t samples, size_t bias_at) const {
    float* const bias = is_biased_ ? read_floats(context, bias_at, linear.width_out()) : nullptr;
    return {Linear::floats(x), samples, bias, Linear::output(context, x.layout.shape, linear.width_out())};
  }

  // Multiplies; read(panel) puts a panel into the room.
  template <class Read>
  void run(const Context& context, const Operands& of, const Linear::Room& room, Read&& read) const {
    linear.panels.each([&](Panel panel) {
      read(panel);
      if (linear.is_transposed) {
        across_.run(context, panel, of.x, of.samples, room.matrix, of.bias, of.y, room.columns);
      } else {
        float* const part = columns_of(linear.panels, panel, of.x, of.samples, room.columns);
        along_.run(context, panel, part, of.samples, room.matrix, of.bias, of.y);
      }
    });
  }

  const Linear linear;

 private:
  const bool is_biased_;
  const AcrossPanels across_;
  const AlongPanels along_;
};

}  // namespace poet
