// Windows that slide over images of two dimensions, as a node's integer lists say: `kernel`, `strides`, `dilations` and
// `begins`, the padding before the image, rows first.
#pragma once

#include "kernels/kernel.h"

namespace poet {

constexpr uint64_t kMostColumnFloats = uint64_t{1} << 60;  // whose bytes fit into 64 bits

struct WindowRange {
  uint64_t first, end;
};

struct Axis {
  uint64_t kernel;
  uint64_t stride;
  uint64_t dilation;
  uint64_t begin;

  uint64_t reach(uint64_t windows) const { return (windows - 1) * stride + (kernel - 1) * dilation + 1; }
  // The windows, of so many, in which a tap sees one of `size` pixels.
  WindowRange windows_of(uint64_t tap, uint64_t size, uint64_t windows) const;
};

Axis read_axis(const NodeInfo& node, size_t index);  // throws Error

// Returns rows and columns of an image that a node makes, its attribute `image`; throws Error.
Shape require_image(const NodeInfo& node);

struct Image {
  uint64_t channels;
  uint64_t height;
  uint64_t width;

  uint64_t size() const { return channels * height * width; }
};

// Columns have a row for each channel and tap, and in it what the tap sees in each window; zero beside the image.
class Windows {
 public:
  explicit Windows(const NodeInfo& node);  // `pixels` says how many windows there are; throws Error

  uint64_t taps() const { return rows_.kernel * columns_.kernel; }
  uint64_t height() const { return height_; }
  uint64_t width() const { return width_; }
  uint64_t pixels() const { return height_ * width_; }

  // Writes `count` rows of the columns of images, from row `first` on, on all threads: in each row the images stand
  // side by side.
  void columns(const Workers& workers, const Image& image, uint64_t batch, const float* from, uint64_t first,
               uint64_t count, float* to) const;
  // Returns likewise rows of what is made of images, of which each has `filters` rows: those of one image where they
  // are, those of several in `spare`, which else is not needed.
  float* turned(const Workers& workers, uint64_t filters, uint64_t batch, float* from, uint64_t first, uint64_t count,
                float* spare) const;
  // Writes so many channels of each image, on all threads: for each pixel the sum of what the columns of these channels
  // have for it, tap after tap; in their rows the images stand side by side.
  void images(const Workers& workers, const Image& image, uint64_t channels, uint64_t batch, const float* columns,
              float* to) const;
  // Whether each window is one pixel, and each pixel one window: columns are then the image.
  bool are_pixels_of(const Image& image) const;

 private:
  void row(const Image& image, const float* from, uint64_t row, float* to) const;
  void plane(const Image& image, const float* columns, uint64_t pitch, float* to) const;
  template <class Use>
  void each_run(const Image& image, uint64_t row, Use&& use) const;

  Axis rows_, columns_;
  uint64_t height_, width_;
};

}  // namespace poet
