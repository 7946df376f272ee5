// Products with a matrix that is in memory panel by panel: some whole rows of it at a time.
//
// Written with a matrix of so many rows and columns, and x with a row for each sample:
//
//   across:    x times the transposed matrix; a panel makes some columns of the product
//   along:     x times the matrix; a panel adds what some columns of x make
//   gradient:  left, transposed, times right, which is as large as the matrix; some columns of left make some rows
//
// Each is done by the runtime's Gemm. MLAS adds up products in blocks of 128 terms, or of more where the product has 64
// columns or fewer: so the bits are those of the whole product where no panel is narrower, and begins at a multiple of
// 128. That is how it was found to be, and nobody promises it: ComparePanels finds out whether it is so for a shape.
#pragma once

#include <algorithm>

#include "kernels/runtime_product.h"

namespace poet {

struct Panel {
  uint64_t first;  // row
  uint64_t rows;
};

// Elements of a panel, and rows that have all of them.
struct Piece {
  uint64_t first;
  uint64_t count;
  Panel rows;
};

// How a matrix is taken apart. The last panel takes up to kNarrow rows more, rather than leave them to one of their
// own (poet_onnx/graph/operators/linear.py has the same).
class Panels {
 public:
  static constexpr uint64_t kNarrow = 64;

  explicit Panels(const NodeInfo& node);  // of the attributes `matrix` and `panel_rows`

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  uint64_t bytes() const { return rows_ * columns_ * sizeof(float); }
  uint64_t most_rows() const;  // of a panel
  uint64_t most_piece_rows() const {
    return std::min(most_rows(), std::max<uint64_t>(2, (piece_ + columns_ - 2) / columns_ + 1));
  }
  template <class Use>
  void each(Use&& use) const {
    for (uint64_t first = 0; first < rows_;) {
      const uint64_t left = rows_ - first, taken = left <= panel_rows_ + kNarrow ? left : panel_rows_;
      use(Panel{first, taken});
      first += taken;
    }
  }
  // Calls `use` with the pieces of a panel, which end where pages of the store do. No piece has a single row, unless
  // the panel has: the runtime multiplies a vector in another order.
  template <class Use>
  void each_piece(Panel panel, Use&& use) const {
    const uint64_t end = (panel.first + panel.rows) * columns_;
    for (uint64_t at = panel.first * columns_; at < end;) {
      const uint64_t stop = std::min(end, (at / piece_ + 1) * piece_);
      Panel rows{at / columns_, (stop - 1) / columns_ - at / columns_ + 1};
      if (rows.rows == 1 && panel.rows > 1) {
        if (rows.first > panel.first) --rows.first;
        rows.rows = 2;
      }
      use(Piece{at, stop - at, rows});
      at = stop;
    }
  }

 private:
  uint64_t rows_ = 0, columns_ = 0, piece_ = 0;
  const uint64_t panel_rows_;
};

class AcrossPanels {
 public:
  AcrossPanels(const NodeInfo& node, const Panels& panels, bool is_biased)
      : panels_(panels), gemm_(node, RuntimeProduct::Operator::kGemm, false, true, is_biased) {}
  // Writes the panel's columns of the product; `spare` has room for them. `bias`: the whole one, where there is one.
  void run(const Context& context, Panel panel, float* x, uint64_t samples, float* matrix, float* bias, float* product,
           float* spare) const;

 private:
  const Panels panels_;
  const RuntimeProduct gemm_;
};

class AlongPanels {
 public:
  AlongPanels(const NodeInfo& node, const Panels& panels, bool is_biased)
      : panels_(panels),
        first_(node, RuntimeProduct::Operator::kGemm, false, false, is_biased),
        next_(node, RuntimeProduct::Operator::kGemm, false, false, true) {}
  // Adds the panel's part to the product, or begins it; x is its columns of the whole one.
  void run(const Context& context, Panel panel, float* x, uint64_t samples, float* matrix, float* bias,
           float* product) const;

 private:
  const Panels panels_;
  const RuntimeProduct first_, next_;
};

class GradientPanels {
 public:
  GradientPanels(const NodeInfo& node, const Panels& panels)
      : panels_(panels), gemm_(node, RuntimeProduct::Operator::kGemm, true, false, false) {}
  // Makes these rows; `left` is their columns of the whole one.
  void run(const Context& context, Panel rows, float* left, float* right, uint64_t samples, float* made) const;

 private:
  const Panels panels_;
  const RuntimeProduct gemm_;
};

// The panel's columns of a matrix that has one for each row of `panels`: in `spare`, or where they are.
float* columns_of(const Panels& panels, Panel panel, float* matrix, uint64_t samples, float* spare);

}  // namespace poet
