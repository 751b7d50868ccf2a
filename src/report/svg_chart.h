#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ballast {

// Charts as inline SVG without scripts. Colours are the CSS classes s0, s1, ... of the page, so the
// page decides about light and dark.

struct Series {
  // band: broad and pale, so that a line on it stays visible. level: dashed, over the whole width.
  enum class Style { line, faint, band, dots, level };
  std::string name;
  Style style = Style::line;
  int color = 0;
  std::vector<std::pair<double, double>> points;  // by x; of a level only y counts
};

// Of the drawing, in pixels where it is shown at its own size: over the page, or half of it.
inline constexpr double kWideChart = 960, kHalfChart = 470;

struct LineChart {
  std::string title, x_label;
  double width = kHalfChart;
  std::vector<Series> series;
  bool from_zero = false;                            // the y axis begins at 0
  std::function<std::string(double)> format_y = {};  // empty: four significant digits
  double x_begin = 0, x_end = 0;                     // equal: what the points have
};

// Long series are thinned to the least and the greatest value per pixel column, so peaks stay.
// Points that are not finite are gaps. Without any finite point: a sentence that says so.
std::string svg(const LineChart& chart);

struct BarChart {
  std::string title;
  double width = kHalfChart;
  std::vector<std::pair<std::string, double>> bars;
  std::function<std::string(double)> format = {};
};
std::string svg(const BarChart& chart);

// Round numbers from low to high, about so many, for an axis. low < high.
std::vector<double> axis_ticks(double low, double high, int about);

}  // namespace ballast
