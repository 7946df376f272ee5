// Convolutions with filters that live in a store: neither the filters nor their gradient are ever whole in memory.
//
//   ConvStored(x, handle, bias?, after...) -> y
//       the bias is there where `biased` is 1
//   ConvStoredBackwardSgd, ...Momentum, ...Adam(dY, x, rates, handle, after...) -> dX, updated
//       its gradients, with the one of x made and the one of the filters used in an update in the store, to the bits of
//       UpdateSgd and its like (optimizer.cpp)
//
// Tensors are float, and images have two dimensions. `matrix` is the filters' shape as a matrix, `panel_rows` how many
// are taken at a time (filter_panels.h), and `kernel`, `strides`, `dilations`, `begins` and `pixels` say how windows
// slide; `images` and `rows` how many whole gradients take at a time (window.h). Each filter is read once: its update
// changes what was read.
#include "kernels/filter_panels.h"
#include "kernels/stored_panels.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

class ConvStored final : public Kernel {
 public:
  explicit ConvStored(const NodeInfo& node)
      : filters_(node), is_biased_(node.require_nonnegative("biased") != 0), convolved_(node, filters_) {}

  void compute(Context& context) override {
    const Tensor x = context.input(0);
    const auto [batch, image] = filters_.batch(x);
    const Panels& panels = filters_.panels;
    const StoredPanels stored(context, 1, panels);
    const float* const bias = is_biased_ ? read_floats(context, 2, panels.rows()) : nullptr;
    auto* const y = static_cast<float*>(context.output(0, filters_.made_shape(batch)));
    const uint64_t columns = batch * filters_.windows.pixels();
    const Workspace memory(context.api(), (panels.most_rows() + columns) * panels.columns() * sizeof(float));
    float* const matrix = memory.floats();
    float* const seen = matrix + panels.most_rows() * panels.columns();
    convolved_.columns(context, image, batch, floats(x), seen);
    panels.each([&](Panel panel) {
      stored.read(panel, matrix);
      convolved_.run(context, panel, matrix, seen, batch, bias, y);
    });
  }

 private:
  const Filters filters_;
  const bool is_biased_;
  const ConvolvedPanels convolved_;
};

template <class Kind>
class ConvStoredBackward final : public Kernel {
 public:
  explicit ConvStoredBackward(const NodeInfo& node)
      : filters_(node), strips_(node, filters_.windows), spread_(node, filters_), weight_(node, filters_) {}

  void compute(Context& context) override {
    const Tensor d_y = context.input(0), x = context.input(1);
    const auto [batch, image] = filters_.batch(x);
    filters_.require_made(d_y, batch);
    const float* const rates = read_floats(context, 2, Kind::kRates);
    const Panels& panels = filters_.panels;
    const StoredPanels stored(context, 3, panels);
    auto* const d_x = static_cast<float*>(context.output(0, x.layout.shape));
    context.output_true(1);
    const Room room(context, filters_, strips_, batch);
    const uint64_t images = batch;
    weight_.columns(context, image, batch, floats(x), room.seen);
    stored.update<Kind>(
        rates, room.matrix, room.gradient,
        [&](Panel panel) { spread_.run(context, panel, room.matrix, floats(d_y), images, room.turned, room.sums); },
        [&](Panel rows) { weight_.run(context, rows, floats(d_y), room.seen, images, room.turned, room.gradient); });
    strips_.each(batch, [&](const Strip& strip) {
      const float* const sums = room.sums + filters_.windows.samples_before(strip);
      filters_.windows.images(context.workers(), image, image.channels, strip, sums, images * filters_.windows.pixels(),
                              d_x);
    });
  }

 private:
  // A panel's filters, the columns of all images, those of their gradients, of the filters' gradient a piece, and a
  // panel's rows of dY: of several images, or of a strip that is not all of one.
  struct Room {
    Room(const Context& context, const Filters& filters, const Strips& strips, uint64_t batch)
        : rows(filters.panels.most_rows() * filters.panels.columns()),
          columns(batch * filters.panels.columns() * filters.windows.pixels()),
          piece(filters.panels.most_piece_rows() * filters.panels.columns()),
          more(filters.panels.most_rows() * (batch > 1                  ? batch * filters.windows.pixels()
                                             : strips.are_images(batch) ? 0
                                                                        : strips.most_samples(batch))),
          memory(context.api(), (rows + 2 * columns + piece + more) * sizeof(float)),
          matrix(memory.floats()),
          seen(matrix + rows),
          sums(seen + columns),
          gradient(sums + columns),
          turned(gradient + piece) {}
    const uint64_t rows, columns, piece, more;
    const Workspace memory;
    float* const matrix;
    float* const seen;
    float* const sums;
    float* const gradient;
    float* const turned;
  };

  const Filters filters_;
  const Strips strips_;
  const SpreadPanels spread_;
  const WeightPanels weight_;
};

template <class K>
constexpr OpDefinition conv_backward(const char* name) {
  return {name, 2, {kFloat, kBool}, Sharing::kNone, create<K>, infer_nothing};
}

}  // namespace

const OpDefinition kConvStored{"ConvStored", 1, {kFloat}, Sharing::kNone, create<ConvStored>, infer_nothing};
const OpDefinition kConvStoredBackwardSgd = conv_backward<ConvStoredBackward<Sgd>>("ConvStoredBackwardSgd");
const OpDefinition kConvStoredBackwardMomentum =
    conv_backward<ConvStoredBackward<Momentum>>("ConvStoredBackwardMomentum");
const OpDefinition kConvStoredBackwardAdam = conv_backward<ConvStoredBackward<Adam>>("ConvStoredBackwardAdam");

}  // namespace poet
