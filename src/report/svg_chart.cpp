#include "report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/to_size.h"
#include "report/html_text.h"

namespace ballast {
namespace {

constexpr double kHeight = 260;
constexpr double kLeft = 76, kRight = 12, kTop = 10, kBottom = 36;
constexpr double kBarHeight = 24, kBarLeft = 110, kBarRight = 90;

using Points = std::vector<std::pair<double, double>>;

bool finite(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
  // Some width for a single value, and air above and below.
  void widen(double share) {
    const double width = high > low ? (high - low) * share : std::max(std::abs(high) * 0.1, 1e-12);
    low -= width;
    high += width;
  }
};

std::string plain(double v) { return fmt::format("{:.4g}", v); }

// First, least, greatest and last of each column, in order: what a line over all points would show.
Points thinned(const Points& points, double x_low, double x_high) {
  constexpr std::size_t kColumns = 640;
  if (points.size() <= 4 * kColumns || !(x_high > x_low)) return points;
  Points out;
  std::size_t begin = 0;
  const auto column_of = [&](double x) {
    return static_cast<std::int64_t>((x - x_low) / (x_high - x_low) * kColumns);
  };
  while (begin < points.size()) {
    if (!finite(points[begin])) {
      out.push_back(points[begin++]);
      continue;
    }
    const std::int64_t column = column_of(points[begin].first);
    std::size_t end = begin, least = begin, most = begin;
    for (; end < points.size() && finite(points[end]) && column_of(points[end].first) == column;
         ++end) {
      if (points[end].second < points[least].second) least = end;
      if (points[end].second > points[most].second) most = end;
    }
    std::vector<std::size_t> keep = {begin, least, most, end - 1};
    std::ranges::sort(keep);
    keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
    for (const std::size_t i : keep) out.push_back(points[i]);
    begin = end;
  }
  return out;
}

class Plot {
 public:
  explicit Plot(const LineChart& c) : c_(c) {
    Range x, y;
    for (const Series& s : c.series) {
      for (const auto& p : s.points) {
        if (s.style == Series::Style::level && std::isfinite(p.second)) y.add(p.second);
        if (s.style == Series::Style::level || !finite(p)) continue;
        x.add(p.first);
        y.add(p.second);
      }
    }
    if (x.empty()) return;
    if (c.x_end > c.x_begin) {
      x.add(c.x_begin);
      x.add(c.x_end);
    }
    if (x.low == x.high) x.widen(0);
    if (c.from_zero) {
      y.add(0);
      y.high += std::max((y.high - y.low) * 0.06, 1e-12);
    } else {
      y.widen(0.06);
    }
    x_ = x;
    y_ = y;
  }

  std::string draw() {
    if (x_.empty()) {
      return fmt::format("<p class=\"empty\">{}: no numbers yet.</p>\n", html(c_.title));
    }
    out_ = fmt::format("<figure><figcaption>{}", html(c_.title));
    for (const Series& s : c_.series) {
      if (s.points.empty() || s.name.empty()) continue;
      out_ += fmt::format(" <span class=\"key s{} {}\">{}</span>", s.color, style_name(s.style),
                          html(s.name));
    }
    out_ +=
        fmt::format("</figcaption>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                    c_.width, kHeight, html(c_.title));
    axes();
    for (const Series& s : c_.series) series(s);
    return out_ + "</svg></figure>\n";
  }

 private:
  static std::string_view style_name(Series::Style style) {
    constexpr std::string_view kNames[] = {"line", "faint", "band", "dots", "level"};
    return kNames[to_size(style)];
  }
  double px(double x) const {
    return kLeft + (x - x_.low) / (x_.high - x_.low) * (c_.width - kLeft - kRight);
  }
  double py(double y) const {
    return kHeight - kBottom - (y - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }

  void axes() {
    for (const double v : axis_ticks(y_.low, y_.high, 5)) {
      out_ += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text class=\"y\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          kLeft, c_.width - kRight, py(v), py(v), kLeft - 6, py(v) + 4,
          html(c_.format_y ? c_.format_y(v) : plain(v)));
    }
    for (const double v : axis_ticks(x_.low, x_.high, c_.width >= kWideChart ? 9 : 5)) {
      out_ += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", px(v),
                          kHeight - kBottom + 16, plain(v));
    }
    out_ += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"x\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft, c_.width - kRight, kHeight - kBottom, (kLeft + c_.width - kRight) / 2, kHeight - 4,
        html(c_.x_label));
  }

  void series(const Series& s) {
    if (s.style == Series::Style::level) {
      for (const auto& p : s.points) {
        if (!std::isfinite(p.second)) continue;
        out_ += fmt::format(
            "<line class=\"s{} level\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
            s.color, kLeft, c_.width - kRight, py(p.second), py(p.second));
      }
      return;
    }
    const Points points = thinned(s.points, x_.low, x_.high);
    std::string path;
    bool pen_up = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto& p = points[i];
      const bool lonely =
          (i == 0 || !finite(points[i - 1])) && (i + 1 == points.size() || !finite(points[i + 1]));
      if (finite(p) && (s.style == Series::Style::dots || lonely)) {
        out_ += fmt::format("<circle class=\"s{} dots\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n",
                            s.color, px(p.first), py(p.second));
      }
      if (!finite(p)) {
        pen_up = true;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen_up ? "M" : "L", px(p.first), py(p.second));
      pen_up = false;
    }
    if (s.style != Series::Style::dots && !path.empty()) {
      out_ +=
          fmt::format("<path class=\"s{} {}\" d=\"{}\"/>\n", s.color, style_name(s.style), path);
    }
  }

  const LineChart& c_;
  Range x_, y_;
  std::string out_;
};

}  // namespace

std::vector<double> axis_ticks(double low, double high, int about) {
  const double rough = (high - low) / about;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share < 1.5 ? 1 : share < 3 ? 2 : share < 7 ? 5 : 10);
  std::vector<double> ticks;
  for (double i = std::ceil(low / step); i * step <= high && ticks.size() < 50; ++i) {
    ticks.push_back(i * step + 0.0);  // + 0.0: never "-0"
  }
  return ticks;
}

std::string svg(const LineChart& chart) { return Plot(chart).draw(); }

std::string svg(const BarChart& chart) {
  double most = 0;
  for (const auto& [name, value] : chart.bars) {
    if (std::isfinite(value)) most = std::max(most, value);
  }
  if (!(most > 0)) {
    return fmt::format("<p class=\"empty\">{}: no numbers yet.</p>\n", html(chart.title));
  }
  const double height = kBarHeight * static_cast<double>(chart.bars.size()) + 4;
  std::string out = fmt::format(
      "<figure><figcaption>{0}</figcaption>\n<svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{0}\">\n",
      html(chart.title), chart.width, height);
  double y = 2;
  for (const auto& [name, value] : chart.bars) {
    const double v = std::isfinite(value) ? std::max(value, 0.0) : 0;
    const double width = v / most * (chart.width - kBarLeft - kBarRight);
    out += fmt::format(
        "<text class=\"y\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text><rect class=\"s0 bar\" x=\"{:.1f}\" "
        "y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/><text x=\"{:.1f}\" "
        "y=\"{:.1f}\">{}</text>\n",
        kBarLeft - 8, y + 16, html(name), kBarLeft, y + 3, width, kBarHeight - 6,
        kBarLeft + width + 6, y + 16, html(chart.format ? chart.format(v) : plain(v)));
    y += kBarHeight;
  }
  return out + "</svg></figure>\n";
}

}  // namespace ballast
