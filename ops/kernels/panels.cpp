#include "kernels/panels.h"

#include <cstring>

#include "parameters/parameter_file.h"

namespace poet {

Panels::Panels(const NodeInfo& node) : panel_rows_(node.require_nonnegative("panel_rows")) {
  const TensorLayout layout = make_layout(kFloat, node.require_shape("matrix"));
  if (layout.shape.rank() != 2 || layout.bytes == 0 || panel_rows_ == 0)
    throw Error("a matrix of shape " + to_string(layout.shape) + " has no panels of " + std::to_string(panel_rows_) +
                " rows");
  rows_ = static_cast<uint64_t>(layout.shape.data()[0]);
  columns_ = static_cast<uint64_t>(layout.shape.data()[1]);
  constexpr uint64_t kPageElements = kParameterPageBytes / sizeof(float);
  constexpr uint64_t kLeastPages = 2, kLeastRows = 8;  // each product of fewer rows costs more than they do
  piece_ = std::max(kLeastPages, (kLeastRows * columns_ + kPageElements - 1) / kPageElements) * kPageElements;
}

uint64_t Panels::most_rows() const {
  uint64_t most = 0;
  each([&](Panel panel) { most = std::max(most, panel.rows); });
  return most;
}

void AcrossPanels::run(const Context& context, Panel panel, float* x, uint64_t samples, float* matrix, float* bias,
                       float* product, float* spare) const {
  const bool is_whole = panel.rows == panels_.rows();
  const Floats part = Floats::of(is_whole ? product : spare, samples, panel.rows);
  const Floats added = Floats::of(bias == nullptr ? nullptr : bias + panel.first, 1, panel.rows);
  gemm_.run(context, Floats::of(x, samples, panels_.columns()), Floats::of(matrix, panel.rows, panels_.columns()),
            bias == nullptr ? nullptr : &added, part);
  if (is_whole) return;
  for (uint64_t sample = 0; sample < samples; ++sample)
    std::memcpy(product + sample * panels_.rows() + panel.first, spare + sample * panel.rows,
                panel.rows * sizeof(float));
}

void AlongPanels::run(const Context& context, Panel panel, float* x, uint64_t samples, float* matrix, float* bias,
                      float* product) const {
  const Floats left = Floats::of(x, samples, panel.rows), right = Floats::of(matrix, panel.rows, panels_.columns());
  const Floats sum = Floats::of(product, samples, panels_.columns());
  const Floats added = Floats::of(bias, 1, panels_.columns());
  if (panel.first == 0)
    first_.run(context, left, right, bias == nullptr ? nullptr : &added, sum);
  else
    next_.run(context, left, right, &sum, sum);
}

void GradientPanels::run(const Context& context, Panel rows, float* left, float* right, uint64_t samples,
                         float* made) const {
  gemm_.run(context, Floats::of(left, samples, rows.rows), Floats::of(right, samples, panels_.columns()), nullptr,
            Floats::of(made, rows.rows, panels_.columns()));
}

float* columns_of(const Panels& panels, Panel panel, float* matrix, uint64_t samples, float* spare) {
  if (panel.rows == panels.rows()) return matrix;
  for (uint64_t sample = 0; sample < samples; ++sample)
    std::memcpy(spare + sample * panel.rows, matrix + sample * panels.rows() + panel.first, panel.rows * sizeof(float));
  return spare;
}

}  // namespace poet
