// Windows that slide over images of one to three dimensions, as a node's integer lists say: `kernel`, `strides`,
// `dilations` and `begins`, the padding before the image; the slowest dimension comes first.
#pragma once

#include <algorithm>

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

Axis read_axis(const NodeInfo& node, size_t index, size_t dimensions);  // throws Error

// Returns the sizes of an image that a node makes, its attribute `image`; throws Error.
Shape require_image(const NodeInfo& node, size_t dimensions);
Shape joined(uint64_t first, uint64_t second, const Shape& more);

// A line of numbers is an image of width 1. So is each row of an image with long ones, of which a strip may then have a
// part.
struct Image {
  uint64_t channels, depth, height, width;

  uint64_t pixels() const { return depth * height * width; }
  uint64_t size() const { return channels * pixels(); }
};

// Neighbouring windows: all of some images, or some rows of one image. Rows of a volume are counted through its depth.
struct Strip {
  uint64_t image, images;
  uint64_t row, rows;
};

// Columns have a row for each channel and tap, and in it what the tap sees in each window; zero beside the image.
class Windows {
 public:
  explicit Windows(const NodeInfo& node);  // `pixels` says how many windows there are; throws Error

  const Shape& kernel() const { return kernel_; }
  const Shape& shape() const { return shape_; }  // how many windows there are in each dimension
  size_t dimensions() const { return kernel_.rank(); }
  uint64_t taps() const { return depth_.kernel * rows_.kernel * columns_.kernel; }
  uint64_t rows() const { return deep_ * height_; }
  uint64_t pixels() const { return rows() * width_; }
  Strip whole(uint64_t batch) const { return {0, batch, 0, rows()}; }
  uint64_t samples(const Strip& strip) const { return strip.images * strip.rows * width_; }
  uint64_t samples_before(const Strip& strip) const { return (strip.image * rows() + strip.row) * width_; }

  // Returns an image of so many channels whose sizes begin at `first` in a shape.
  Image image(uint64_t channels, const Shape& shape, size_t first) const;
  // Whether a tensor has a batch, channels, and an element for each window.
  bool are_those_of(const Shape& shape) const;

  // Writes `count` rows of a strip's columns, from row `first` on, on all threads: in each row the images stand side by
  // side. `from`: the first of all images.
  void columns(const Workers& workers, const Image& image, const Strip& strip, const float* from, uint64_t first,
               uint64_t count, float* to) const;
  // Returns a strip of what is made of images, `from` on, and has `filters` rows for each: `count` of these rows, with
  // the images side by side. They are those of one image where a strip has all of one, and else in `spare`.
  float* turned(const Workers& workers, uint64_t filters, const Strip& strip, float* from, uint64_t first,
                uint64_t count, float* spare) const;
  // Adds to so many channels of each of a strip's images, on all threads: to each pixel what the columns of these
  // channels have for it, tap after tap. An image's first strip begins with zeros. Rows of columns are `pitch` floats
  // apart, in them the images stand side by side; `to`: the first of all images.
  void images(const Workers& workers, const Image& image, uint64_t channels, const Strip& strip, const float* columns,
              uint64_t pitch, float* to) const;
  // Whether each window is one pixel, and each pixel one window: columns are then the image.
  bool are_pixels_of(const Image& image) const;

 private:
  void row(const Image& image, const float* from, uint64_t row, const Strip& strip, float* to) const;
  void plane(const Image& image, const float* columns, uint64_t pitch, const Strip& strip, float* to) const;
  template <class Use>
  void each_run(const Image& image, uint64_t row, const Strip& strip, Use&& use) const;

  Shape kernel_, shape_;
  bool is_long_;  // whether rows of an image are lines
  Axis depth_, rows_, columns_;
  uint64_t deep_, height_, width_;  // how many windows there are
};

// How many windows a node takes at a time: those of `images` images or, where it is one, `rows` rows of them.
class Strips {
 public:
  Strips(const NodeInfo& node, const Windows& windows);  // throws Error

  // The most windows that a strip of so many images has.
  uint64_t most_samples(uint64_t batch) const { return windows_.samples({0, images(batch), 0, rows(batch)}); }
  // Whether each strip is all of one image.
  bool are_images(uint64_t batch) const { return images(batch) == 1 && rows(batch) == windows_.rows(); }

  // Calls use(strip) for each strip of the images, from the first on.
  template <class Use>
  void each(uint64_t batch, Use&& use) const {
    const uint64_t all = windows_.rows();
    for (uint64_t image = 0; image < batch; image += images(batch))
      for (uint64_t row = 0; row < all; row += rows(batch))
        use(Strip{image, std::min(images(batch), batch - image), row, std::min(rows(batch), all - row)});
  }

 private:
  uint64_t images(uint64_t batch) const { return std::min(images_, batch); }
  uint64_t rows(uint64_t batch) const {
    return images(batch) == 1 ? std::min(rows_, windows_.rows()) : windows_.rows();
  }

  const Windows& windows_;
  const uint64_t images_, rows_;
};

}  // namespace poet
