// Batch normalization in training and its gradient, each in one node.
//
//   BatchNormalize(X, scale, bias, running_mean, running_variance, rates) -> (Y, mean, inverse)
//       Y = X * slope + (bias - mean * slope), with slope = scale * inverse, the batch's mean and
//       inverse = 1 / sqrt(variance + epsilon);
//       rates = (epsilon, momentum, correction); running = momentum * running + (1 - momentum) * batch's, in place; the
//       batch's variance, a mean over the count of elements, is taken times the correction: 1 as in ONNX, count /
//       (count - 1) as in torch
//   BatchNormalizeGradient(dY, X, scale, mean, inverse) -> (dX, dScale, dBias)
//       dBias = sum(dY);  dScale = inverse * sum(dY * (X - mean))
//       dX = scale * inverse * (dY - dBias / count - (X - mean) * inverse * dScale / count)
//
// X and dY are [batch, channels, pixels...] of float, everything else has one number for each channel.
//
// BatchNormalize gives the bits of the training runtime's BatchNormInternal on x86-64. A rectifier behind it decides by
// a sign; of millions a few are zero but for rounding, and gradients jump where one falls the other way. So sums are
// taken in that runtime's order, in packets of four floats, and roots as it takes them. The gradient decides nothing:
// it takes sums of one channel in lanes of float for a while, beyond that in double, which is more accurate. dX may
// take dY's buffer.
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/vector_loops.h"

namespace poet {
namespace {

constexpr uint64_t kPacket = 4;  // floats of a vector of SSE, for which the training runtime is compiled

// The sum of term(x[i]): of packets in pairs from `head` on, of a last packet, and of the numbers in front and behind.
template <typename Term>
inline float sum_in_packets(const float* x, uint64_t count, uint64_t head, Term term) {
  float pair[2 * kPacket] = {};
  uint64_t i = head;
  for (; i + 2 * kPacket <= count; i += 2 * kPacket)
    for (uint64_t lane = 0; lane < 2 * kPacket; ++lane) pair[lane] += term(x[i + lane]);
  for (uint64_t lane = 0; lane < kPacket; ++lane) pair[lane] += pair[lane + kPacket];
  if (i + kPacket <= count) {
    for (uint64_t lane = 0; lane < kPacket; ++lane) pair[lane] += term(x[i + lane]);
    i += kPacket;
  }
  float total = (pair[0] + pair[2]) + (pair[1] + pair[3]);
  for (uint64_t before = 0; before < head; ++before) total += term(x[before]);
  for (; i < count; ++i) total += term(x[i]);
  return total;
}

// The sum of a channel that begins `first` floats into a tensor. Packets are aligned, as the tensor itself is.
POET_WIDE float sum_aligned(const float* x, uint64_t first, uint64_t count) {
  const uint64_t head = std::min((0 - first) % kPacket, count);
  return sum_in_packets(x + first, count, head, [](float number) { return number; });
}

POET_WIDE float sum_of_squares_about(const float* x, uint64_t count, float centre) {
  return sum_in_packets(x, count, 0, [centre](float number) { return (number - centre) * (number - centre); });
}

// The square root of one of four numbers: the processor's guess of 1 / root, and one step of Newton's iteration. Makers
// of processors guess differently, so this is the one result here that depends on the machine.
float root_in_packet(float number) {
#ifdef __SSE__
  if (number < std::numeric_limits<float>::min()) return 0;
  const float guess = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(number)));
  return number * (guess * (number * -0.5F * (guess * guess) + 1.5F));
#else
  return std::sqrt(number);
#endif
}

// One channel of all images: where it begins in the first one, and how far from there in the next.
struct Channel {
  uint64_t first;
  uint64_t pitch;
  uint64_t images;
  uint64_t pixels;
};

constexpr uint64_t kLanes = 32;       // sums that numbers apart from each other are added to in turn
constexpr uint64_t kMostTimes = 256;  // that a lane is added to before it goes on in double, but for a longer image

struct GradientSums {
  double d_y = 0;
  double products = 0;  // of d_y and the deviation of x
};

POET_WIDE GradientSums sum_gradients(const float* d_y, const float* x, Channel channel, float centre) {
  GradientSums sums;
  float lanes[kLanes] = {}, products[kLanes] = {};
  uint64_t times = 0;
  for (uint64_t n = 0; n < channel.images; ++n) {
    const float* gradients = d_y + channel.first + n * channel.pitch;
    const float* numbers = x + channel.first + n * channel.pitch;
    uint64_t i = 0;
    const auto add = [&](uint64_t lane) {
      lanes[lane] += gradients[i + lane];
      products[lane] += gradients[i + lane] * (numbers[i + lane] - centre);
    };
    for (; i + kLanes <= channel.pixels; i += kLanes)
      for (uint64_t lane = 0; lane < kLanes; ++lane) add(lane);
    for (; i + kGroup <= channel.pixels; i += kGroup)
      for (uint64_t lane = 0; lane < kGroup; ++lane) add(lane);
    for (uint64_t lane = 0; i + lane < channel.pixels; ++lane) add(lane);
    times += channel.pixels / kLanes + kLanes / kGroup;
    if (times < kMostTimes && n + 1 < channel.images) continue;
    sums.d_y += total<kLanes>(lanes);
    sums.products += total<kLanes>(products);
    std::fill_n(lanes, kLanes, 0.0F);
    std::fill_n(products, kLanes, 0.0F);
    times = 0;
  }
  return sums;
}

POET_WIDE void normalize(float* __restrict y, const float* __restrict x, uint64_t count, float slope, float offset) {
  for (uint64_t i = 0; i < count; ++i) y[i] = x[i] * slope + offset;
}

struct Combination {
  float middle, factor, centre, slope, offset;
};

// `middle` is the mean of d_y but for its rounding, which `offset` makes good: a product with d_y itself would lose the
// digits of d_y's deviations, and with them the sum of d_x, which is zero.
POET_WIDE void combine(float* d_x, const float* d_y, const float* x, Channel channel, Combination by) {
  for (uint64_t n = 0; n < channel.images; ++n) {
    const uint64_t first = channel.first + n * channel.pitch;
    write_each(d_x + first, channel.pixels, [=, gradients = d_y + first, numbers = x + first](uint64_t i) {
      return by.factor * (gradients[i] - by.middle) + (by.slope * (numbers[i] - by.centre) + by.offset);
    });
  }
}

struct Sizes {
  uint64_t batch = 1;
  uint64_t channels = 1;
  uint64_t pixels = 1;
  double count() const { return static_cast<double>(batch) * static_cast<double>(pixels); }
};

Sizes read_sizes(const Tensor& x) {
  const Shape& shape = x.layout.shape;
  if (x.layout.dtype != kFloat || shape.rank() < 2)
    throw Error("input 0 is " + described(x) + ", but must be float of two dimensions or more");
  Sizes sizes;
  sizes.batch = static_cast<uint64_t>(shape.data()[0]);
  sizes.channels = static_cast<uint64_t>(shape.data()[1]);
  for (size_t i = 2; i < shape.rank(); ++i) sizes.pixels *= static_cast<uint64_t>(shape.data()[i]);
  return sizes;
}

template <class Body>
void each_channel(const Context& context, const Sizes& sizes, const Body& body) {
  each_item(context.workers(), sizes.channels, sizes.batch * sizes.pixels, body);
}

constexpr uint64_t kRates = 3;

class BatchNormalize final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor input = context.input(0);
    const Sizes sizes = read_sizes(input);
    const auto* x = static_cast<const float*>(input.data);
    const float* scale = read_floats(context, 1, sizes.channels);
    const float* bias = read_floats(context, 2, sizes.channels);
    float* running_mean = read_floats(context, 3, sizes.channels);
    float* running_variance = read_floats(context, 4, sizes.channels);
    const float* rates = read_floats(context, 5, kRates);
    const uint64_t bytes = sizes.channels * sizeof(float);
    // A recomputed node has one scratch tensor for both statistics: nobody reads what it leaves there.
    for (const float* statistic : {running_mean, running_variance})
      require_apart(
          {{statistic, bytes}, {scale, bytes}, {bias, bytes}, {rates, kRates * sizeof(float)}, input.memory()}, 1);
    const float epsilon = rates[0], momentum = rates[1], rest = 1.0F - momentum, correction = rates[2];
    auto* y = static_cast<float*>(context.output(0, input.layout.shape));
    auto* means = static_cast<float*>(context.output(1, Shape::of(sizes.channels)));
    auto* inverses = static_cast<float*>(context.output(2, Shape::of(sizes.channels)));
    const uint64_t image = sizes.channels * sizes.pixels;
    const auto count = static_cast<float>(sizes.batch * sizes.pixels);
    const uint64_t in_packets = sizes.channels / kPacket * kPacket;
    each_channel(context, sizes, [&](uint64_t channel) {
      const uint64_t first = channel * sizes.pixels;
      float total = 0, squares = 0;
      for (uint64_t n = 0; n < sizes.batch; ++n) total += sum_aligned(x, n * image + first, sizes.pixels);
      const float mean = total / count;
      for (uint64_t n = 0; n < sizes.batch; ++n)
        squares += sum_of_squares_about(x + n * image + first, sizes.pixels, mean);
      const float variance = squares / count;
      const float reciprocal = 1.0F / (variance + epsilon);
      const float inverse = channel < in_packets ? root_in_packet(reciprocal) : std::sqrt(reciprocal);
      const float slope = inverse * scale[channel], offset = bias[channel] - mean * slope;
      for (uint64_t n = 0; n < sizes.batch; ++n)
        normalize(y + n * image + first, x + n * image + first, sizes.pixels, slope, offset);
      means[channel] = mean;
      inverses[channel] = inverse;
      running_mean[channel] = momentum * running_mean[channel] + rest * mean;
      running_variance[channel] = momentum * running_variance[channel] + rest * (variance * correction);
    });
  }
};

class BatchNormalizeGradient final : public Kernel {
 public:
  void compute(Context& context) override {
    const Tensor gradient = context.input(0);
    const Tensor input = context.input(1);
    const Sizes sizes = read_sizes(gradient);
    if (input.layout.dtype != kFloat || input.layout.shape != gradient.layout.shape)
      throw Error("input 1 is " + described(input) + ", but must be as input 0, of shape " +
                  to_string(gradient.layout.shape));
    const auto* d_y = static_cast<const float*>(gradient.data);
    const auto* x = static_cast<const float*>(input.data);
    const float* scale = read_floats(context, 2, sizes.channels);
    const float* mean = read_floats(context, 3, sizes.channels);
    const float* inverse = read_floats(context, 4, sizes.channels);
    auto* d_x = static_cast<float*>(context.output(0, input.layout.shape));
    auto* d_scale = static_cast<float*>(context.output(1, Shape::of(sizes.channels)));
    auto* d_bias = static_cast<float*>(context.output(2, Shape::of(sizes.channels)));
    const uint64_t image = sizes.channels * sizes.pixels;
    each_channel(context, sizes, [&](uint64_t channel) {
      const Channel all{channel * sizes.pixels, image, sizes.batch, sizes.pixels};
      const GradientSums sums = sum_gradients(d_y, x, all, mean[channel]);
      const double each = static_cast<double>(inverse[channel]);
      const double factor = static_cast<double>(scale[channel]) * each;
      const double average = sums.d_y / sizes.count();
      const auto middle = static_cast<float>(average);
      const auto offset = static_cast<float>(factor * (static_cast<double>(middle) - average));
      const auto slope = static_cast<float>(-factor * each * each * sums.products / sizes.count());
      d_scale[channel] = static_cast<float>(each * sums.products);
      d_bias[channel] = static_cast<float>(sums.d_y);
      combine(d_x, d_y, x, all, {middle, static_cast<float>(factor), mean[channel], slope, offset});
    });
  }
};

}  // namespace

const OpDefinition kBatchNormalize{
    "BatchNormalize", 3, {kFloat, kFloat, kFloat}, Sharing::kNone, create<BatchNormalize>, infer_from_input};
const OpDefinition kBatchNormalizeGradient{"BatchNormalizeGradient",       3,
                                           {kFloat, kFloat, kFloat},       Sharing::kAllowed,
                                           create<BatchNormalizeGradient>, infer_from_input};

}  // namespace poet
