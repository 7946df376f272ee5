// The weight's gradient of a convolution in which every channel has filters of its own.
//
//   DepthwiseWeightGradient(dY, X) -> dW
//       X is [batch, channels, height, width], dY [batch, channels * multiplier, rows, columns] and dW
//       [channels * multiplier, 1, kernel], all float. The integer lists `kernel`, `strides`, `dilations` and `begins`
//       (the padding before the image) have two entries each.
//
// One channel of X is copied into a small padded image whose columns are sorted by their place within a stride, so that
// what lies under a tap is one piece of each row. A few columns of dY at once are multiplied by what every tap sees.
// Threads take channels in turn; each has an image and sums of its own, in one workspace.
#include <algorithm>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"
#include "kernels/window.h"
#include "kernels/workspace.h"

namespace poet {
namespace {

constexpr uint64_t kColumns = kGroup;  // taken at once; each has a sum of its own
constexpr uint64_t kMostTimes = 256;   // that a sum of floats is added to before it goes on in double

// A view of rows of an image, and the rows of dY, next to each other, that are computed from it.
struct Rows {
  const float* view;
  uint64_t pitch;  // of the view
  const float* d_y;
  uint64_t count;
  uint64_t columns;
};

// Adds products of dY with the views of all taps, which begin `offsets` behind the first one's, to kColumns sums for
// each tap. Views are read up to a multiple of kColumns; nothing comes of what is beyond a row.
POET_WIDE void add_products(float* sums, const std::vector<uint64_t>& offsets, Rows rows) {
  const uint64_t rest = rows.columns % kColumns;
  float last[kColumns] = {};
  int32_t inside[kColumns] = {};
  std::fill_n(inside, rest, -1);
  for (uint64_t row = 0; row < rows.count; ++row, rows.view += rows.pitch, rows.d_y += rows.columns) {
    uint64_t column = 0;
    for (; column + kColumns <= rows.columns; column += kColumns) {
      const Group d_y = group(rows.d_y + column);
      float* sum = sums;
      for (const uint64_t offset : offsets) {
        group(sum) += group(rows.view + offset + column) * d_y;
        sum += kColumns;
      }
    }
    if (rest == 0) continue;
    for (uint64_t k = 0; k < rest; ++k) last[k] = rows.d_y[column + k];
    const Group d_y = group(last);
    const Bits mask = *reinterpret_cast<const Bits*>(inside);
    float* sum = sums;
    for (const uint64_t offset : offsets) {
      const Group product = group(rows.view + offset + column) * d_y;
      group(sum) += reinterpret_cast<Group>(reinterpret_cast<Bits>(product) & mask);
      sum += kColumns;
    }
  }
}

// Moves sums of floats, kColumns for each of so many totals, to the totals.
POET_WIDE void flush(double* totals, float* sums, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) totals[i] += total<kColumns>(sums + i * kColumns);
  std::fill_n(sums, count * kColumns, 0.0F);
}

// The gradient of one channel's filters, as far as it is computed: in float for a while, then in double.
class Sums {
 public:
  static uint64_t floats_of(uint64_t count) { return count * (sizeof(double) / sizeof(float) + kColumns); }

  Sums(float* room, uint64_t count)
      : totals_(reinterpret_cast<double*>(room)), floats_(room + floats_of(count) - count * kColumns), count_(count) {
    std::fill_n(totals_, count_, 0.0);
    std::fill_n(floats_, count_ * kColumns, 0.0F);
  }

  float* of(uint64_t first) { return floats_ + first * kColumns; }

  // Says that all have been added to so many times.
  void added(uint64_t times) {
    times_ += times;
    if (times_ >= kMostTimes) flush_floats();
  }

  void take(float* d_w) {
    flush_floats();
    for (uint64_t i = 0; i < count_; ++i) d_w[i] = static_cast<float>(totals_[i]);
    std::fill_n(totals_, count_, 0.0);
  }

 private:
  void flush_floats() {
    flush(totals_, floats_, count_);
    times_ = 0;
  }

  double* totals_;
  float* floats_;
  uint64_t count_;
  uint64_t times_ = 0;
};

// No larger padded image: what is computed of it then fits into 64 bits.
constexpr uint64_t kLargestSide = uint64_t{1} << 31;

// How one channel of one image is padded, and what is seen of it.
class Planes {
 public:
  Planes(uint64_t height, uint64_t width, uint64_t out_height, uint64_t out_width, const Axis& rows,
         const Axis& columns)
      : height_(height),
        width_(width),
        out_height_(out_height),
        out_width_(out_width),
        rows_(rows),
        padded_height_(std::max(rows.begin + height, rows.reach(out_height))),
        part_((std::max(columns.begin + width, columns.reach(out_width)) + columns.stride - 1) / columns.stride),
        pitch_(part_ * columns.stride) {
    if (padded_height_ > kLargestSide || pitch_ > kLargestSide)
      throw Error("a padded image of " + std::to_string(padded_height_) + " by " + std::to_string(pitch_) +
                  " is too large");
    const auto place = [&](uint64_t column) { return column % columns.stride * part_ + column / columns.stride; };
    for (uint64_t column = 0; column < width; ++column) places_.push_back(place(column + columns.begin));
    for (uint64_t i = 0; i < rows.kernel; ++i)
      for (uint64_t j = 0; j < columns.kernel; ++j)
        taps_.push_back(i * rows.dilation * pitch_ + place(j * columns.dilation));
  }

  uint64_t pixels() const { return height_ * width_; }
  uint64_t windows() const { return out_height_ * out_width_; }
  uint64_t padded_floats() const { return padded_height_ * pitch_ + kColumns; }

  // Copies an image to where one was before, or zeros.
  void load(float* padded, const float* x) const {
    float* to = padded + rows_.begin * pitch_;
    for (uint64_t row = 0; row < height_; ++row, to += pitch_, x += width_)
      if (part_ == pitch_) {
        std::copy_n(x, width_, to + places_.front());
      } else {
        for (uint64_t column = 0; column < width_; ++column) to[places_[column]] = x[column];
      }
  }

  // Adds what comes of the image, for so many filters.
  void add(Sums& sums, const float* padded, const float* d_y, uint64_t filters) const {
    const uint64_t times = (out_width_ + kColumns - 1) / kColumns;
    const uint64_t band = std::max<uint64_t>(kMostTimes / times, 1);
    for (uint64_t row = 0; row < out_height_; row += band) {
      const uint64_t rows = std::min(band, out_height_ - row);
      const float* view = padded + row * rows_.stride * pitch_;
      for (uint64_t filter = 0; filter < filters; ++filter)
        add_products(sums.of(filter * taps_.size()), taps_,
                     {view, rows_.stride * pitch_, d_y + filter * windows() + row * out_width_, rows, out_width_});
      sums.added(rows * times);
    }
  }

 private:
  uint64_t height_, width_, out_height_, out_width_;
  Axis rows_;
  uint64_t padded_height_;
  uint64_t part_;  // columns of the same place within a stride
  uint64_t pitch_;
  std::vector<uint64_t> places_;  // of the image's columns in a padded row
  std::vector<uint64_t> taps_;    // how far behind the first one's each tap's view begins
};

class DepthwiseWeightGradient final : public Kernel {
 public:
  explicit DepthwiseWeightGradient(const NodeInfo& node)
      : rows_(read_axis(node, 0, 2)), columns_(read_axis(node, 1, 2)), threads_(node.threads()) {}

  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor input = context.input(1);
    const Shape& given = gradient.layout.shape;
    const Shape& image = input.layout.shape;
    const bool four = given.rank() == 4 && image.rank() == 4;
    if (!four || gradient.layout.dtype != kFloat || input.layout.dtype != kFloat ||
        given.data()[0] != image.data()[0] || image.data()[1] == 0 || given.data()[1] % image.data()[1] != 0)
      throw Error("a gradient of shape " + to_string(given) + " and an input of shape " + to_string(image) +
                  " are no depthwise convolution's, or not of float");
    const auto batch = static_cast<uint64_t>(image.data()[0]), channels = static_cast<uint64_t>(image.data()[1]);
    const auto filters = static_cast<uint64_t>(given.data()[1]);
    auto* d_w = static_cast<float*>(context.output(0, Shape::of(filters, 1, rows_.kernel, columns_.kernel)));
    const uint64_t multiplier = filters / channels, sums_of_channel = multiplier * rows_.kernel * columns_.kernel;
    if (given.data()[2] == 0 || given.data()[3] == 0) {
      std::fill_n(d_w, channels * sums_of_channel, 0.0F);
      return;
    }
    const auto* x = static_cast<const float*>(input.data);
    const auto* d_y = static_cast<const float*>(gradient.data);
    const Planes planes(static_cast<uint64_t>(image.data()[2]), static_cast<uint64_t>(image.data()[3]),
                        static_cast<uint64_t>(given.data()[2]), static_cast<uint64_t>(given.data()[3]), rows_,
                        columns_);
    const uint64_t lanes = std::min(threads_, channels), lane_floats = floats_of_lane(planes, sums_of_channel);
    const Workspace room(context.api(), lanes * lane_floats * sizeof(float));
    each_lane(context.workers(), channels, lanes, [&](uint64_t lane, const auto& take) {
      float* const padded = room.floats() + lane * lane_floats + Sums::floats_of(sums_of_channel);
      Sums sums(room.floats() + lane * lane_floats, sums_of_channel);
      std::fill_n(padded, planes.padded_floats(), 0.0F);
      for (uint64_t channel = 0; take(&channel);) {
        for (uint64_t n = 0; n < batch; ++n) {
          planes.load(padded, x + (n * channels + channel) * planes.pixels());
          planes.add(sums, padded, d_y + (n * filters + channel * multiplier) * planes.windows(), multiplier);
        }
        sums.take(d_w + channel * sums_of_channel);
      }
    });
  }

 private:
  // Whole cache lines, so that lanes do not write to each other's (poet_onnx/graph/operators/convolution.py has the
  // same).
  static uint64_t floats_of_lane(const Planes& planes, uint64_t sums) {
    constexpr uint64_t kLine = 16;
    return (Sums::floats_of(sums) + planes.padded_floats() + kLine - 1) / kLine * kLine;
  }

  Axis rows_, columns_;
  uint64_t threads_;
};

}  // namespace

const OpDefinition kDepthwiseWeightGradient{
    "DepthwiseWeightGradient", 1, {kFloat}, Sharing::kNone, create<DepthwiseWeightGradient>, infer_nothing};

}  // namespace poet
