// Products with matrices of few bits, and rows of such tables, to the bits of DequantizeLinear and ONNX Runtime's own
// product: floats are made of some rows at a time.
//
//   LinearQuantized(x, codes, scales, zeros?, bias?, after...) -> y
//       x times the matrix, or, where `transposed` is 1, the transposed matrix; the bias is there where `biased` is 1
//   GatherQuantized(indices, codes, scales, zeros?, after...) -> rows
//       the rows that indices name, as Gather counts them
//
// quantized_rows.h says how they are quantized; zeros are there where `zeroed` is 1. Codes, scales and zeros are
// tensors, or handles of what is in a store. `panel_rows`: panels.h.
#include <algorithm>
#include <optional>

#include "kernels/linear.h"
#include "kernels/quantized_rows.h"
#include "kernels/rows.h"

namespace poet {
namespace {

class LinearQuantized final : public Kernel {
 public:
  explicit LinearQuantized(const NodeInfo& node)
      : linear_(node),
        quantization_(node),
        is_biased_(require_flag(node, "biased")),
        across_(node, linear_.panels, is_biased_),
        along_(node, linear_.panels, is_biased_) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    const uint64_t samples = Linear::samples(x, linear_.width_in(), "x");
    const QuantizedRows rows(context, 1, quantization_);
    const size_t bias_at = quantization_.is_zeroed() ? 4 : 3;
    float* const bias = is_biased_ ? read_floats(context, bias_at, linear_.width_out()) : nullptr;
    float* const y = Linear::output(context, x.layout.shape, linear_.width_out());
    const uint64_t most_rows = linear_.panels.most_rows();
    const uint64_t spare_bytes = rows.spare_bytes(QuantizedPanels::window_rows(rows, most_rows));
    const Linear::Room room(context, linear_.panels, samples, false, spare_bytes);
    QuantizedPanels floats(rows, most_rows, reinterpret_cast<unsigned char*>(room.gradient));
    linear_.panels.each([&](Panel panel) {
      floats.read(context.workers(), panel.first, panel.rows, room.matrix);
      if (linear_.is_transposed) {
        across_.run(context, panel, Linear::floats(x), samples, room.matrix, bias, y, room.columns);
      } else {
        float* const part = columns_of(linear_.panels, panel, Linear::floats(x), samples, room.columns);
        along_.run(context, panel, part, samples, room.matrix, bias, y);
      }
    });
  }

 private:
  const Linear linear_;
  const Quantization quantization_;
  const bool is_biased_;
  const AcrossPanels across_;
  const AlongPanels along_;
};

class GatherQuantized final : public Kernel {
 public:
  explicit GatherQuantized(const NodeInfo& node) : quantization_(node) {}

  void compute(Context& context) override {
    const Tensor indices = context.input(0);
    const QuantizedRows table(context, 1, quantization_);
    const std::vector<int64_t> rows = read_rows(indices, static_cast<int64_t>(quantization_.rows()));
    auto* out = static_cast<float*>(context.output(0, gathered(indices.layout.shape)));
    std::optional<Workspace> room;
    if (const uint64_t bytes = table.row_spare_bytes() * rows.size()) room.emplace(context.api(), bytes);
    auto* const spare = room ? reinterpret_cast<unsigned char*>(room->floats()) : nullptr;
    table.gather(context.workers(), rows, out, spare);
  }

 private:
  Shape gathered(const Shape& indices) const {
    Shape shape(indices.rank() + 1);
    std::copy_n(indices.data(), indices.rank(), shape.data());
    shape.data()[indices.rank()] = static_cast<int64_t>(quantization_.columns());
    return shape;
  }

  const Quantization quantization_;
};

}  // namespace

const OpDefinition kLinearQuantized{"LinearQuantized", 1, {kFloat}, Sharing::kNone, create<LinearQuantized>,
                                    infer_nothing};
const OpDefinition kGatherQuantized{"GatherQuantized", 1, {kFloat}, Sharing::kNone, create<GatherQuantized>,
                                    infer_nothing};

}  // namespace poet
