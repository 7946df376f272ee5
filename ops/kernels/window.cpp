#include "kernels/window.h"

#include <algorithm>

namespace poet {
namespace {

// No larger numbers in a window: what is computed of them then fits into 64 bits.
constexpr int64_t kLargestStep = int64_t{1} << 16;

uint64_t entry(const NodeInfo& node, const char* name, size_t index, int64_t least) {
  const Shape list = node.require_shape(name);
  if (list.rank() != 2) throw Error(std::string("the attribute '") + name + "' must have two entries");
  const int64_t value = list.data()[index];
  if (value < least || value > kLargestStep)
    throw Error(std::string("the attribute '") + name + "' holds " + std::to_string(value) + ", which is out of range");
  return static_cast<uint64_t>(value);
}

}  // namespace

WindowRange Axis::windows_of(uint64_t tap, uint64_t size, uint64_t windows) const {
  const uint64_t offset = tap * dilation;
  const auto reaching = [&](uint64_t pixel) {  // how many windows see pixels before it
    return pixel <= offset ? 0 : std::min(windows, (pixel - offset + stride - 1) / stride);
  };
  return {reaching(begin), reaching(begin + size)};
}

Axis read_axis(const NodeInfo& node, size_t index) {
  return {entry(node, "kernel", index, 1), entry(node, "strides", index, 1), entry(node, "dilations", index, 1),
          entry(node, "begins", index, 0)};
}

Shape require_image(const NodeInfo& node) {
  const Shape image = node.require_shape("image");
  if (image.rank() != 2 || std::min(image.data()[0], image.data()[1]) < 1)
    throw Error("the attribute 'image' is " + to_string(image) + ", but must be two sizes");
  return image;
}

Windows::Windows(const NodeInfo& node)
    : rows_(read_axis(node, 0)),
      columns_(read_axis(node, 1)),
      height_(entry(node, "pixels", 0, 1)),
      width_(entry(node, "pixels", 1, 1)) {}

// Calls `use` with neighbouring windows of a row of a strip's columns: the first one's place in the row, counted in
// each image, its pixel's in the image, their count.
template <class Use>
void Windows::each_run(const Image& image, uint64_t row, const Strip& strip, Use&& use) const {
  const uint64_t channel = row / taps(), i = row % taps() / columns_.kernel, j = row % columns_.kernel;
  const WindowRange down = rows_.windows_of(i, image.height, height_);
  const WindowRange across = columns_.windows_of(j, image.width, width_);
  if (across.first >= across.end) return;
  const uint64_t left = across.first * columns_.stride + j * columns_.dilation - columns_.begin;
  const uint64_t end = std::min(down.end, strip.row + strip.rows);
  for (uint64_t y = std::max(down.first, strip.row); y < end; ++y) {
    const uint64_t line = channel * image.height + y * rows_.stride + i * rows_.dilation - rows_.begin;
    use((y - strip.row) * width_ + across.first, line * image.width + left, across.end - across.first);
  }
}

void Windows::row(const Image& image, const float* from, uint64_t row, const Strip& strip, float* to) const {
  std::fill_n(to, strip.rows * width_, 0.0F);
  each_run(image, row, strip, [&](uint64_t place, uint64_t pixel, uint64_t count) {
    if (columns_.stride == 1) {
      std::copy_n(from + pixel, count, to + place);
    } else {
      for (uint64_t k = 0; k < count; ++k) to[place + k] = from[pixel + k * columns_.stride];
    }
  });
}

void Windows::columns(const Workers& workers, const Image& image, const Strip& strip, const float* from, uint64_t first,
                      uint64_t count, float* to) const {
  const uint64_t windows = strip.rows * width_;
  each_item(workers, count * strip.images, windows, [&](uint64_t each) {
    const uint64_t n = strip.image + each % strip.images;
    row(image, from + n * image.size(), first + each / strip.images, strip, to + each * windows);
  });
}

float* Windows::turned(const Workers& workers, uint64_t filters, const Strip& strip, float* from, uint64_t first,
                       uint64_t count, float* spare) const {
  const auto of = [&](uint64_t image, uint64_t filter) {
    return from + ((strip.image + image) * filters + first + filter) * pixels() + strip.row * width_;
  };
  if (strip.images == 1 && strip.rows == height_) return of(0, 0);
  const uint64_t windows = strip.rows * width_;
  each_item(workers, count * strip.images, windows, [&](uint64_t each) {
    std::copy_n(of(each % strip.images, each / strip.images), windows, spare + each * windows);
  });
  return spare;
}

// Adds up the columns of an image of one channel, whose rows are `pitch` floats apart.
void Windows::plane(const Image& image, const float* columns, uint64_t pitch, const Strip& strip, float* to) const {
  if (strip.row == 0) std::fill_n(to, image.size(), 0.0F);
  for (uint64_t tap = 0; tap < taps(); ++tap)
    each_run(image, tap, strip, [&](uint64_t place, uint64_t pixel, uint64_t count) {
      const float* const added = columns + tap * pitch + place;
      if (columns_.stride == 1) {
        for (uint64_t k = 0; k < count; ++k) to[pixel + k] += added[k];
      } else {
        for (uint64_t k = 0; k < count; ++k) to[pixel + k * columns_.stride] += added[k];
      }
    });
}

void Windows::images(const Workers& workers, const Image& image, uint64_t channels, const Strip& strip,
                     const float* columns, uint64_t pitch, float* to) const {
  const Image one{1, image.height, image.width};
  const uint64_t windows = strip.rows * width_;
  each_item(workers, channels * strip.images, one.size() + taps() * windows, [&](uint64_t each) {
    const uint64_t n = each / channels, channel = each % channels;
    plane(one, columns + channel * taps() * pitch + n * windows, pitch, strip,
          to + (strip.image + n) * image.size() + channel * one.size());
  });
}

bool Windows::are_pixels_of(const Image& image) const {
  const bool plain =
      taps() == 1 && rows_.stride == 1 && columns_.stride == 1 && rows_.begin == 0 && columns_.begin == 0;
  return plain && image.height == height_ && image.width == width_;
}

Strips::Strips(const NodeInfo& node, const Windows& windows)
    : windows_(windows),
      images_(std::max<uint64_t>(node.require_nonnegative("images"), 1)),
      rows_(std::max<uint64_t>(node.require_nonnegative("rows"), 1)) {}

}  // namespace poet
