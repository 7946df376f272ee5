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

// Calls `use` with neighbouring windows of a row of the columns: the first one's place in the row, its pixel's in the
// image, their count.
template <class Use>
void Windows::each_run(const Image& image, uint64_t row, Use&& use) const {
  const uint64_t channel = row / taps(), i = row % taps() / columns_.kernel, j = row % columns_.kernel;
  const WindowRange down = rows_.windows_of(i, image.height, height_);
  const WindowRange across = columns_.windows_of(j, image.width, width_);
  if (across.first >= across.end) return;
  const uint64_t left = across.first * columns_.stride + j * columns_.dilation - columns_.begin;
  for (uint64_t y = down.first; y < down.end; ++y) {
    const uint64_t line = channel * image.height + y * rows_.stride + i * rows_.dilation - rows_.begin;
    use(y * width_ + across.first, line * image.width + left, across.end - across.first);
  }
}

void Windows::row(const Image& image, const float* from, uint64_t row, float* to) const {
  std::fill_n(to, pixels(), 0.0F);
  each_run(image, row, [&](uint64_t place, uint64_t pixel, uint64_t count) {
    if (columns_.stride == 1) {
      std::copy_n(from + pixel, count, to + place);
    } else {
      for (uint64_t k = 0; k < count; ++k) to[place + k] = from[pixel + k * columns_.stride];
    }
  });
}

void Windows::columns(const Workers& workers, const Image& image, uint64_t batch, const float* from, uint64_t first,
                      uint64_t count, float* to) const {
  each_item(workers, count * batch, pixels(), [&](uint64_t each) {
    row(image, from + each % batch * image.size(), first + each / batch, to + each * pixels());
  });
}

float* Windows::turned(const Workers& workers, uint64_t filters, uint64_t batch, float* from, uint64_t first,
                       uint64_t count, float* spare) const {
  if (batch == 1) return from + first * pixels();
  each_item(workers, count * batch, pixels(), [&](uint64_t each) {
    std::copy_n(from + (each % batch * filters + first + each / batch) * pixels(), pixels(), spare + each * pixels());
  });
  return spare;
}

// Adds up the columns of an image of one channel, whose rows are `pitch` floats apart.
void Windows::plane(const Image& image, const float* columns, uint64_t pitch, float* to) const {
  std::fill_n(to, image.size(), 0.0F);
  for (uint64_t tap = 0; tap < taps(); ++tap)
    each_run(image, tap, [&](uint64_t place, uint64_t pixel, uint64_t count) {
      const float* const added = columns + tap * pitch + place;
      if (columns_.stride == 1) {
        for (uint64_t k = 0; k < count; ++k) to[pixel + k] += added[k];
      } else {
        for (uint64_t k = 0; k < count; ++k) to[pixel + k * columns_.stride] += added[k];
      }
    });
}

void Windows::images(const Workers& workers, const Image& image, uint64_t channels, uint64_t batch,
                     const float* columns, float* to) const {
  const Image one{1, image.height, image.width};
  const uint64_t pitch = batch * pixels();
  each_item(workers, channels * batch, one.size() + taps() * pixels(), [&](uint64_t each) {
    const uint64_t n = each / channels, channel = each % channels;
    plane(one, columns + channel * taps() * pitch + n * pixels(), pitch, to + n * image.size() + channel * one.size());
  });
}

bool Windows::are_pixels_of(const Image& image) const {
  const bool plain =
      taps() == 1 && rows_.stride == 1 && columns_.stride == 1 && rows_.begin == 0 && columns_.begin == 0;
  return plain && image.height == height_ && image.width == width_;
}

}  // namespace poet
