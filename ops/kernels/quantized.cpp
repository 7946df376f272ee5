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
  explicit LinearQuantized(const NodeInfo& node) : product_(node), quantization_(node) {}

  void compute(Context& context) override {
    const Linear& linear = product_.linear;
    const Tensor x = context.input(0);
    const uint64_t samples = Linear::samples(x, linear.width_in(), "x");
    const QuantizedRows rows(context, 1, quantization_);
    const auto operands = product_.operands(context, x, samples, quantization_.is_zeroed() ? 4 : 3);
    const uint64_t most_rows = linear.panels.most_rows();
    const uint64_t spare_bytes = rows.spare_bytes(QuantizedPanels::window_rows(rows, most_rows));
    const Linear::Room room(context, linear.panels, samples, false, spare_bytes);
    QuantizedPanels floats(rows, most_rows, reinterpret_cast<unsigned char*>(room.gradient));
    product_.run(context, operands, room,
                 [&](Panel panel) { floats.read(context.workers(), panel.first, panel.rows, room.matrix); });
  }

 private:
  const LinearProduct product_;
  const Quantization quantization_;
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
