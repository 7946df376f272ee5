#include "kernels/window.h"

#include <algorithm>

namespace poet {
namespace {

// No larger numbers in a window, and no more windows over an image: what is computed of them then fits into 64 bits.
constexpr uint64_t kLargestStep = uint64_t{1} << 16;
constexpr uint64_t kMostWindows = uint64_t{1} << 32;  // a line of sound has more than an image has rows

constexpr uint64_t kLongRow = 256;  // windows (poet_onnx/graph/operators/windows.py has the same)

constexpr Axis kNoAxis{1, 1, 1, 0};

uint64_t entry(const NodeInfo& node, const char* name, size_t index, size_t count, int64_t least,
               uint64_t most = kLargestStep) {
  const Shape list = node.require_shape(name);
  if (list.rank() != count)
    throw Error(std::string("the attribute '") + name + "' must have " + std::to_string(count) + " entries");
  const int64_t value = list.data()[index];
  if (value < least || static_cast<uint64_t>(value) > most)
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

Axis read_axis(const NodeInfo& node, size_t index, size_t dimensions) {
  return {entry(node, "kernel", index, dimensions, 1), entry(node, "strides", index, dimensions, 1),
          entry(node, "dilations", index, dimensions, 1), entry(node, "begins", index, dimensions, 0)};
}

Shape require_image(const NodeInfo& node, size_t dimensions) {
  const Shape image = node.require_shape("image");
  if (image.rank() != dimensions || *std::min_element(image.data(), image.data() + dimensions) < 1)
    throw Error("the attribute 'image' is " + to_string(image) + ", but must be " + std::to_string(dimensions) +
                " sizes");
  return image;
}

Shape joined(uint64_t first, uint64_t second, const Shape& more) {
  Shape made(2 + more.rank());
  made.data()[0] = static_cast<int64_t>(first);
  made.data()[1] = static_cast<int64_t>(second);
  std::copy_n(more.data(), more.rank(), made.data() + 2);
  return made;
}

Windows::Windows(const NodeInfo& node) : kernel_(node.require_shape("kernel")), shape_(node.require_shape("pixels")) {
  const size_t count = dimensions();
  if (count < 1 || count > 3)
    throw Error("windows have " + std::to_string(count) + " dimensions, but must have one to three");
  const auto windows = [&](size_t index) { return entry(node, "pixels", index, count, 1, kMostWindows); };
  is_long_ = count == 2 && windows(1) >= kLongRow;
  const size_t row = count == 3 || is_long_;  // the dimension that rows are counted in
  const bool is_wide = row + 1 < count;
  depth_ = row == 1 ? read_axis(node, 0, count) : kNoAxis;
  rows_ = read_axis(node, row, count);
  columns_ = is_wide ? read_axis(node, row + 1, count) : kNoAxis;
  deep_ = row == 1 ? windows(0) : 1;
  height_ = windows(row);
  width_ = is_wide ? windows(row + 1) : 1;
  if (deep_ > kMostWindows / height_ / width_)
    throw Error("the attribute 'pixels' is " + to_string(shape_) + ", which are too many windows");
}

Image Windows::image(uint64_t channels, const Shape& shape, size_t first) const {
  const auto size = [&](size_t index) { return static_cast<uint64_t>(shape.data()[first + index]); };
  if (dimensions() == 1) return {channels, 1, size(0), 1};
  if (is_long_) return {channels, size(0), size(1), 1};
  if (dimensions() == 2) return {channels, 1, size(0), size(1)};
  return {channels, size(0), size(1), size(2)};
}

bool Windows::are_those_of(const Shape& shape) const {
  return shape.rank() == 2 + dimensions() && std::equal(shape_.data(), shape_.data() + dimensions(), shape.data() + 2);
}

// Calls `use` with windows of a row of a strip's columns that have pixels in equal steps: the first one's place in the
// row, counted in each image, its pixel's in the image, their count, and the step.
template <class Use>
void Windows::each_run(const Image& image, uint64_t row, const Strip& strip, Use&& use) const {
  const uint64_t channel = row / taps(), tap = row % taps();
  const uint64_t k = tap / (rows_.kernel * columns_.kernel), i = tap / columns_.kernel % rows_.kernel,
                 j = tap % columns_.kernel;
  const WindowRange deep = depth_.windows_of(k, image.depth, deep_), down = rows_.windows_of(i, image.height, height_),
                    across = columns_.windows_of(j, image.width, width_);
  if (across.first >= across.end) return;
  const uint64_t left = across.first * columns_.stride + j * columns_.dilation - columns_.begin;
  // Rows that follow each other in the image, too, or are one window wide.
  const bool is_even = across.first == 0 && across.end == width_ && columns_.stride == 1 && image.width == width_ &&
                       (rows_.stride == 1 || width_ == 1);
  const uint64_t last = strip.row + strip.rows;
  for (uint64_t z = std::max(deep.first, strip.row / height_); z < deep.end && z * height_ < last; ++z) {
    const uint64_t before = z * height_;
    const uint64_t first = std::max(down.first, strip.row > before ? strip.row - before : 0),
                   end = std::min(down.end, last - before);
    const uint64_t plane =
        (channel * image.depth + z * depth_.stride + k * depth_.dilation - depth_.begin) * image.height;
    for (uint64_t y = first; y < end; y += is_even ? end - first : 1) {
      const uint64_t line = plane + y * rows_.stride + i * rows_.dilation - rows_.begin;
      const uint64_t place = (before + y - strip.row) * width_ + across.first, pixel = line * image.width + left;
      if (is_even)
        use(place, pixel, (end - first) * width_, width_ == 1 ? rows_.stride : 1);
      else
        use(place, pixel, across.end - across.first, columns_.stride);
    }
  }
}

void Windows::row(const Image& image, const float* from, uint64_t row, const Strip& strip, float* to) const {
  const uint64_t windows = strip.rows * width_;
  std::fill_n(to, strip.images * windows, 0.0F);
  each_run(image, row, strip, [&](uint64_t place, uint64_t pixel, uint64_t count, uint64_t step) {
    const float* seen = from + strip.image * image.size() + pixel;
    float* made = to + place;
    for (uint64_t n = 0; n < strip.images; ++n, seen += image.size(), made += windows) {
      if (step == 1) {
        std::copy_n(seen, count, made);
      } else {
        for (uint64_t k = 0; k < count; ++k) made[k] = seen[k * step];
      }
    }
  });
}

void Windows::columns(const Workers& workers, const Image& image, const Strip& strip, const float* from, uint64_t first,
                      uint64_t count, float* to) const {
  const uint64_t windows = samples(strip);
  each_item(workers, count, windows,
            [&](uint64_t each) { row(image, from, first + each, strip, to + each * windows); });
}

float* Windows::turned(const Workers& workers, uint64_t filters, const Strip& strip, float* from, uint64_t first,
                       uint64_t count, float* spare) const {
  const auto of = [&](uint64_t image, uint64_t filter) {
    return from + ((strip.image + image) * filters + first + filter) * pixels() + strip.row * width_;
  };
  if (strip.images == 1 && strip.rows == rows()) return of(0, 0);
  const uint64_t windows = strip.rows * width_;
  each_item(workers, count * strip.images, windows, [&](uint64_t each) {
    std::copy_n(of(each % strip.images, each / strip.images), windows, spare + each * windows);
  });
  return spare;
}

// Adds up the columns of one channel of a strip's images; `to`: the channel of the first of them.
void Windows::plane(const Image& image, const float* columns, uint64_t pitch, const Strip& strip, float* to) const {
  const uint64_t windows = strip.rows * width_;
  for (uint64_t n = 0; n < strip.images && strip.row == 0; ++n)
    std::fill_n(to + n * image.size(), image.pixels(), 0.0F);
  for (uint64_t tap = 0; tap < taps(); ++tap)
    each_run(image, tap, strip, [&](uint64_t place, uint64_t pixel, uint64_t count, uint64_t step) {
      const float* added = columns + tap * pitch + place;
      float* sums = to + pixel;
      for (uint64_t n = 0; n < strip.images; ++n, added += windows, sums += image.size()) {
        if (step == 1) {
          for (uint64_t k = 0; k < count; ++k) sums[k] += added[k];
        } else {
          for (uint64_t k = 0; k < count; ++k) sums[k * step] += added[k];
        }
      }
    });
}

void Windows::images(const Workers& workers, const Image& image, uint64_t channels, const Strip& strip,
                     const float* columns, uint64_t pitch, float* to) const {
  const uint64_t floats = strip.images * image.pixels() + taps() * samples(strip);
  each_item(workers, channels, floats, [&](uint64_t channel) {
    plane(image, columns + channel * taps() * pitch, pitch, strip,
          to + strip.image * image.size() + channel * image.pixels());
  });
}

bool Windows::are_pixels_of(const Image& image) const {
  const auto is_plain = [](const Axis& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.begin == 0; };
  return is_plain(depth_) && is_plain(rows_) && is_plain(columns_) && image.depth == deep_ && image.height == height_ &&
         image.width == width_;
}

Strips::Strips(const NodeInfo& node, const Windows& windows)
    : windows_(windows),
      images_(std::max<uint64_t>(node.require_nonnegative("images"), 1)),
      rows_(std::max<uint64_t>(node.require_nonnegative("rows"), 1)) {}

}  // namespace poet
