// Convolutions with filters that are in memory panel by panel. They are a matrix with a row for each filter and a
// column for each channel and tap (window.h); a panel has some of its rows (panels.h).
//
// A convolution is the product of the filters and the image's columns, the gradient of its image that of the transposed
// filters and dY, spread over the image, and the filters' gradient that of dY and the transposed columns. Each is done
// by the runtime's Gemm, as its Conv does it, and our ConvDataGradient and ConvWeightGradient, for the same windows
// after the others: with panels of a multiple of 128 filters the bits are theirs. Nobody promises it:
// CompareConvolution finds out whether it is so for a shape.
#pragma once

#include "kernels/panels.h"
#include "kernels/window.h"

namespace poet {

// A node's filters, and how its images look.
class Filters {
 public:
  explicit Filters(const NodeInfo& node) : panels(node), windows(node) {}

  const Panels panels;
  const Windows windows;

  // Returns these rows of a strip of dY, with the images side by side: in `spare` where it is not all of one image.
  float* turned(const Context& context, Panel some, const Strip& strip, float* d_y, float* spare) const {
    return windows.turned(context.workers(), panels.rows(), strip, d_y, some.first, some.rows, spare);
  }

  struct Batch {
    uint64_t size;
    Image image;
  };
  Batch batch(const Tensor& x) const;  // throws Error where they are no such images
  void require_made(const Tensor& d_y,
                    uint64_t batch) const;  // throws Error where it is not so large as their gradient
  Shape made_shape(uint64_t batch) const;
  uint64_t made() const { return panels.rows() * windows.pixels(); }  // floats of an image
};

class ConvolvedPanels {
 public:
  ConvolvedPanels(const NodeInfo& node, const Filters& filters)
      : filters_(filters), gemm_(node, RuntimeProduct::Operator::kGemm, false, false, false) {}
  // Writes the columns of images, image after image: what `run` takes.
  void columns(const Context& context, const Image& image, uint64_t batch, const float* x, float* to) const;
  // Writes what the panel's filters make of images, whose columns follow each other. `bias`: the whole one, or nullptr.
  void run(const Context& context, Panel panel, float* matrix, float* columns, uint64_t batch, const float* bias,
           float* y) const;

 private:
  const Filters& filters_;
  const RuntimeProduct gemm_;
};

class SpreadPanels {
 public:
  SpreadPanels(const NodeInfo& node, const Filters& filters)
      : filters_(filters),
        first_(node, RuntimeProduct::Operator::kGemm, true, false, false),
        next_(node, RuntimeProduct::Operator::kGemm, true, false, true) {}
  // Adds to columns, in which the images stand side by side, what the panel's filters make of dY, or begins them;
  // `spare` has room for the panel's rows of dY, and is not needed for one image.
  void run(const Context& context, Panel panel, float* matrix, float* d_y, uint64_t batch, float* spare,
           float* columns) const;

 private:
  const Filters& filters_;
  const RuntimeProduct first_, next_;
};

class WeightPanels {
 public:
  WeightPanels(const NodeInfo& node, const Filters& filters)
      : filters_(filters),
        strips_(node, filters.windows),
        first_(node, RuntimeProduct::Operator::kGemm, false, true, false),
        next_(node, RuntimeProduct::Operator::kGemm, false, true, true) {}
  // Writes the columns of images, strip after strip: what `run` takes.
  void columns(const Context& context, const Image& image, uint64_t batch, const float* x, float* to) const;
  // Makes these rows of the gradient of dY and such columns; `spare` has room for the rows of a strip of dY, and is not
  // needed where strips are images.
  void run(const Context& context, Panel rows, float* d_y, float* columns, uint64_t batch, float* spare,
           float* made) const;

 private:
  const Filters& filters_;
  const Strips strips_;
  const RuntimeProduct first_, next_;
};

}  // namespace poet
