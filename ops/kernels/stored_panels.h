// A matrix in a store, read and updated panel by panel.
#pragma once

#include "kernels/panels.h"
#include "kernels/stored.h"

namespace poet {

class StoredPanels {
 public:
  // Throws Error where input `index` names a tensor of another size.
  StoredPanels(const Context& context, size_t index, const Panels& panels) : stored_(context, index), panels_(panels) {
    if (stored_.bytes() != panels.bytes())
      throw Error("the stored tensor has " + std::to_string(stored_.bytes()) + " bytes, but the matrix " +
                  std::to_string(panels.bytes()));
  }

  void read(Panel panel, float* to) const {
    const uint64_t row_bytes = panels_.columns() * sizeof(float);
    stored_.store->read(stored_.tensor, panel.first * row_bytes, to, panel.rows * row_bytes);
  }

  // Reads every panel into `matrix`, lets `use` see it, and updates it piece by piece with the gradient of a piece's
  // rows, which `make` leaves in `gradient`.
  template <class Kind, class Use, class Make>
  void update(const float* rates, float* matrix, const float* gradient, Use&& use, Make&& make) const {
    const uint64_t columns = panels_.columns();
    ParameterFile::Change whole = stored_.store->begin_change();
    panels_.each([&](Panel panel) {
      read(panel, matrix);
      use(panel);
      panels_.each_piece(panel, [&](const Piece& piece) {
        make(piece.rows);
        const float* const known = matrix + (piece.first - panel.first * columns);
        const uint64_t first = piece.rows.first * columns;
        stored_.store->update(stored_.tensor, Kind::kTensors, piece.first, piece.count, known,
                              [&](const ParameterStore::Part& part) {
                                Kind::run(part.tensors, gradient + (part.first - first), part.count, rates);
                              });
      });
    });
    whole.finish();
  }

 private:
  const Stored stored_;
  const Panels& panels_;
};

}  // namespace poet
