#include "io/resize_image.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {
namespace {

// 8 bits for the result and 2 for weights beyond 1 and below 0 leave 22 of 32.
constexpr int kFixedBits = 32 - 8 - 2;

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

std::uint8_t byte_of(std::int32_t fixed) {
  return static_cast<std::uint8_t>(std::clamp(fixed >> kFixedBits, 0, 255));
}

std::uint8_t byte_of(float x) {  // half to even
  return static_cast<std::uint8_t>(std::clamp(std::nearbyint(x), 0.f, 255.f));
}

}  // namespace

ResizeBox fit_box(const ImageResizer::Sizes& s) {
  const auto w = static_cast<double>(s.from_width), h = static_cast<double>(s.from_height);
  const double ratio = w / h;
  const double target = static_cast<double>(s.to_width) / static_cast<double>(s.to_height);
  double crop_w = w, crop_h = h;
  if (ratio > target) crop_w = target * h;
  if (ratio < target) crop_h = w / target;
  const double left = (w - crop_w) * 0.5, top = (h - crop_h) * 0.5;
  return {left, top, left + crop_w, top + crop_h};
}

ImageResizer::ImageResizer(const Sizes& sizes, ResizeFilter filter)
    : ImageResizer(
          sizes,
          {0, 0, static_cast<double>(sizes.from_width), static_cast<double>(sizes.from_height)},
          filter) {}

ImageResizer::ImageResizer(const Sizes& sizes, const ResizeBox& box, ResizeFilter filter)
    : sizes_(sizes), filter_(filter) {
  check(std::min({sizes.from_width, sizes.from_height, sizes.to_width, sizes.to_height}) > 0,
        "an image of {} x {} becomes {} x {}", sizes.from_width, sizes.from_height, sizes.to_width,
        sizes.to_height);
  if (filter == ResizeFilter::area) {
    check(sizes.to_width <= sizes.from_width && sizes.to_height <= sizes.from_height,
          "area grows {} x {} to {} x {}", sizes.from_width, sizes.from_height, sizes.to_width,
          sizes.to_height);
    x_ = area_axis(sizes.from_width, sizes.to_width);
    y_ = area_axis(sizes.from_height, sizes.to_height);
    row_.resize(to_size(sizes.to_width * 3));
    totals_.resize(row_.size());
    return;
  }
  check(box.left >= 0 && box.top >= 0 && box.right > box.left && box.bottom > box.top &&
            box.right <= static_cast<double>(sizes.from_width) &&
            box.bottom <= static_cast<double>(sizes.from_height),
        "the part ({}, {}) to ({}, {}) of {} x {} pixels", box.left, box.top, box.right, box.bottom,
        sizes.from_width, sizes.from_height);
  x_ = pillow_axis(box.left, box.right, sizes.from_width, sizes.to_width, filter);
  y_ = pillow_axis(box.top, box.bottom, sizes.from_height, sizes.to_height, filter);
  sums_.resize(to_size(sizes.to_width * 3));
}

ImageResizer::Axis ImageResizer::pillow_axis(double from, double to, std::int64_t source,
                                             std::int64_t target, ResizeFilter filter) {
  const double scale = (to - from) / static_cast<double>(target);
  const double widening = std::max(scale, 1.0);
  const double support = (filter == ResizeFilter::lanczos ? 3.0 : 2.0) * widening;
  Axis axis;
  std::vector<double> weights;
  for (std::int64_t i = 0; i < target; ++i) {
    const double center = from + (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
    const auto end =
        std::min<std::int64_t>(static_cast<std::int64_t>(center + support + 0.5), source);
    weights.clear();
    double sum = 0;
    for (std::int64_t k = first; k < end; ++k) {
      const double at = (static_cast<double>(k) - center + 0.5) * (1.0 / widening);
      weights.push_back(filter == ResizeFilter::lanczos ? lanczos(at) : cubic(at));
      sum += weights.back();
    }
    axis.targets.push_back({first, end - first, axis.fixed.size()});
    for (double w : weights) {
      if (sum != 0) w /= sum;
      w *= 1 << kFixedBits;
      axis.fixed.push_back(static_cast<std::int32_t>(w < 0 ? w - 0.5 : w + 0.5));
    }
  }
  return axis;
}

// Target i covers [i, i + 1) * scale of the source; slivers below a thousandth of a pixel are left
// out, as OpenCV leaves them out.
ImageResizer::Axis ImageResizer::area_axis(std::int64_t source, std::int64_t target) {
  constexpr double kSliver = 1e-3;
  const double scale = static_cast<double>(source) / static_cast<double>(target);
  Axis axis;
  for (std::int64_t i = 0; i < target; ++i) {
    const double from = static_cast<double>(i) * scale, to = from + scale;
    const double cell = std::min(scale, static_cast<double>(source) - from);
    auto first = static_cast<std::int64_t>(std::ceil(from));
    const auto last = std::min(static_cast<std::int64_t>(std::floor(to)), source - 1);
    first = std::min(first, last);
    const double before = static_cast<double>(first) - from;
    const double behind = to - static_cast<double>(last);
    const bool partial = before > kSliver;
    Axis::Target t{partial ? first - 1 : first, 0, axis.real.size()};
    if (partial) axis.real.push_back(static_cast<float>(before / cell));
    for (std::int64_t k = first; k < last; ++k) axis.real.push_back(static_cast<float>(1.0 / cell));
    if (behind > kSliver) {
      axis.real.push_back(static_cast<float>(std::min(std::min(behind, 1.0), cell) / cell));
    }
    t.count = static_cast<std::int64_t>(axis.real.size() - t.weight);
    axis.targets.push_back(t);
  }
  return axis;
}

void ImageResizer::resize(std::span<const std::uint8_t> from, std::span<std::uint8_t> to) {
  check(from.size() == to_size(sizes_.from_width * sizes_.from_height * 3) &&
            to.size() == to_size(sizes_.to_width * sizes_.to_height * 3),
        "an image of {} bytes becomes one of {}", from.size(), to.size());
  if (filter_ != ResizeFilter::area) return resize_pillow(from, to);
  if (sizes_.from_width % sizes_.to_width == 0 && sizes_.from_height % sizes_.to_height == 0) {
    return resize_whole_area(from, to);
  }
  resize_area(from, to);
}

void ImageResizer::resize_pillow(std::span<const std::uint8_t> from, std::span<std::uint8_t> to) {
  const std::int64_t width = sizes_.to_width;
  const std::int64_t first = y_.targets.front().first;
  const std::int64_t rows = y_.targets.back().first + y_.targets.back().count - first;
  rows_.resize(to_size(rows * width * 3));
  constexpr std::int32_t kHalf = 1 << (kFixedBits - 1);
  for (std::int64_t y = 0; y < rows; ++y) {
    const std::uint8_t* const source = from.data() + (first + y) * sizes_.from_width * 3;
    std::uint8_t* const target = rows_.data() + y * width * 3;
    for (std::int64_t x = 0; x < width; ++x) {
      const Axis::Target& t = x_.targets[to_size(x)];
      const std::int32_t* const weight = x_.fixed.data() + t.weight;
      const std::uint8_t* pixel = source + t.first * 3;
      std::int32_t r = kHalf, g = kHalf, b = kHalf;
      for (std::int64_t k = 0; k < t.count; ++k, pixel += 3) {
        r += pixel[0] * weight[k];
        g += pixel[1] * weight[k];
        b += pixel[2] * weight[k];
      }
      target[x * 3] = byte_of(r);
      target[x * 3 + 1] = byte_of(g);
      target[x * 3 + 2] = byte_of(b);
    }
  }
  for (std::int64_t y = 0; y < sizes_.to_height; ++y) {
    const Axis::Target& t = y_.targets[to_size(y)];
    std::fill(sums_.begin(), sums_.end(), kHalf);
    for (std::int64_t k = 0; k < t.count; ++k) {
      const std::int32_t weight = y_.fixed[t.weight + to_size(k)];
      const std::uint8_t* const row = rows_.data() + (t.first - first + k) * width * 3;
      for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += row[i] * weight;
    }
    std::uint8_t* const target = to.data() + y * width * 3;
    for (std::size_t i = 0; i < sums_.size(); ++i) target[i] = byte_of(sums_[i]);
  }
}

void ImageResizer::resize_whole_area(std::span<const std::uint8_t> from,
                                     std::span<std::uint8_t> to) const {
  const std::int64_t sx = sizes_.from_width / sizes_.to_width;
  const std::int64_t sy = sizes_.from_height / sizes_.to_height;
  const float share = 1.f / static_cast<float>(sx * sy);
  for (std::int64_t y = 0; y < sizes_.to_height; ++y) {
    for (std::int64_t x = 0; x < sizes_.to_width * 3; ++x) {
      const std::uint8_t* const corner =
          from.data() + y * sy * sizes_.from_width * 3 + x / 3 * sx * 3 + x % 3;
      std::int32_t sum = 0;
      for (std::int64_t j = 0; j < sy; ++j) {
        for (std::int64_t i = 0; i < sx; ++i) sum += corner[j * sizes_.from_width * 3 + i * 3];
      }
      // Two by two rounds half up, all others half to even: OpenCV has a way of its own for it.
      to[to_size(y * sizes_.to_width * 3 + x)] = sx == 2 && sy == 2
                                                     ? static_cast<std::uint8_t>((sum + 2) >> 2)
                                                     : byte_of(static_cast<float>(sum) * share);
    }
  }
}

void ImageResizer::resize_area(std::span<const std::uint8_t> from, std::span<std::uint8_t> to) {
  for (std::int64_t y = 0; y < sizes_.to_height; ++y) {
    const Axis::Target& ty = y_.targets[to_size(y)];
    std::fill(totals_.begin(), totals_.end(), 0.f);
    for (std::int64_t j = 0; j < ty.count; ++j) {
      const std::uint8_t* const source = from.data() + (ty.first + j) * sizes_.from_width * 3;
      for (std::int64_t x = 0; x < sizes_.to_width; ++x) {
        const Axis::Target& tx = x_.targets[to_size(x)];
        float sum[3] = {0, 0, 0};
        for (std::int64_t i = 0; i < tx.count; ++i) {
          const float weight = x_.real[tx.weight + to_size(i)];
          for (int c = 0; c < 3; ++c) {
            sum[c] += static_cast<float>(source[(tx.first + i) * 3 + c]) * weight;
          }
        }
        for (int c = 0; c < 3; ++c) row_[to_size(x * 3 + c)] = sum[c];
      }
      const float weight = y_.real[ty.weight + to_size(j)];
      for (std::size_t i = 0; i < row_.size(); ++i) totals_[i] += weight * row_[i];
    }
    std::uint8_t* const target = to.data() + y * sizes_.to_width * 3;
    for (std::size_t i = 0; i < totals_.size(); ++i) target[i] = byte_of(totals_[i]);
  }
}

}  // namespace ballast
