#include "report/html_report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "report/html_text.h"
#include "report/svg_chart.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kEvil = "<script>alert('x')</script>&\"\x01\xff";

RunHistory sample_history(int steps) {
  RunHistory h;
  h.starts = 1;
  h.info = RunInfo{};
  h.info->title = "a run";
  h.info->total_steps = 50;
  h.info->allowed = {{200}, {200}, {}, 4_GB};
  h.info->plan = {{"step", "device", 2_GB, 1_GB, {{"weights", 1_GB}}}};
  for (int s = 1; s <= steps; ++s) {
    StepRecord r;
    r.step = s;
    r.loss = s == 3 ? NAN : 1.0 / s;
    r.lr = 1e-4;
    r.seconds = 2;
    r.times.compute = 1.5;
    r.planned = {{100}, {100}, {}, 3_GB};
    r.measured = {{90}, {90}, {}, 2_GB};
    h.steps.push_back(r);
  }
  return h;
}

// Every tag that is opened is closed, in order. Enough to see a missing or unescaped piece.
void expect_balanced(const std::string& page) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)([^<>]*)>");
  for (std::sregex_iterator at(page.begin(), page.end(), tag), end; at != end; ++at) {
    const std::string name = (*at)[2], rest = (*at)[3];
    if (name == "meta" || rest.ends_with("/")) continue;
    if ((*at)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(HtmlReport, ShowsEveryPartOfARun) {
  RunHistory h = sample_history(40);
  h.evals = {{0, 20, "eval0", 0.25}};
  h.events = {{1700000000, 20, "checkpoint", "step_20"}};
  h.info->config = "[model]\nx = 1\n";
  h.info->notes = {"a note"};
  h.info->environment = {{"processors", "2"}};
  const std::string page = html_report(h);
  for (const char* part :
       {"<title>a run</title>", "40 of 50", "Learning rate", "Gradient norm", "RAM (compute share)",
        "RAM of the process", "Seconds per step", "compute", "weights 1.000 GB", "checkpoint",
        "[model]\nx = 1\n", "a note", "processors", "eval0", "2023-11-14T22:13:20Z"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  expect_balanced(page);
}

TEST(HtmlReport, NeedsNoScriptsAndNoOtherFiles) {
  const std::string page = html_report(sample_history(40));
  for (const char* outside : {"<script", "src=", "href=", "url(", "@import", "http"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST(HtmlReport, EscapesWhateverComesFromFiles) {
  RunHistory h = sample_history(2);
  h.info->title = h.info->command = h.info->started = h.info->config = kEvil;
  h.info->summary = h.info->environment = {{kEvil, kEvil}};
  h.info->notes = {kEvil};
  h.info->plan = {{kEvil, kEvil, {}, {}, {{kEvil, {}}}}};
  h.evals = {{0, 1, kEvil, 1}};
  h.events = {{0, 1, kEvil, kEvil}};
  const std::string page = html_report(h);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("\x01")), Not(HasSubstr("\xff"))));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
  expect_balanced(page);
}

TEST(HtmlReport, HalfALogAndNoneAtAllGiveAPage) {
  expect_balanced(html_report({}));
  RunHistory one = sample_history(1);
  one.info.reset();
  one.steps[0].loss = NAN;
  one.steps[0].seconds = INFINITY;
  const std::string page = html_report(one);
  expect_balanced(page);
  EXPECT_THAT(page, HasSubstr("Loss: no numbers yet."));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("nan\"")), Not(HasSubstr("inf\""))));
}

TEST(HtmlReport, LongRunsGiveASmallPageThatKeepsThePeak) {
  RunHistory h = sample_history(200'000);
  h.steps[77'777].loss = 1000;
  EXPECT_LT(html_report(h).size(), 400'000u);
  LineChart chart;
  chart.from_zero = true;
  Series s = {"", Series::Style::line, 0, {}};
  for (int i = 0; i < 200'000; ++i) s.points.emplace_back(i, i == 77'777 ? 1000.0 : 1.0);
  chart.series = {s};
  const std::string drawn = svg(chart);
  std::smatch top;  // 6 % below the upper edge of the plot
  EXPECT_TRUE(std::regex_search(drawn, top, std::regex("L[0-9.]+ (2[0-9]\\.[0-9])")));
}

TEST(HtmlReport, SmoothedLossHasNoBiasAtItsStartAndGapsWhereTheLossHas) {
  const std::vector<double> losses = {2, 2, NAN, 2, 5};
  const auto smooth = smoothed(losses);
  ASSERT_EQ(smooth.size(), 5u);
  EXPECT_DOUBLE_EQ(smooth[0], 2);
  EXPECT_DOUBLE_EQ(smooth[1], 2);
  EXPECT_TRUE(std::isnan(smooth[2]));
  EXPECT_DOUBLE_EQ(smooth[3], 2);
  EXPECT_TRUE(smooth[4] > 2 && smooth[4] < 5);
}

TEST(SvgChart, AxisHasRoundNumbers) {
  EXPECT_THAT(axis_ticks(0, 1, 5),
              ::testing::ElementsAre(0, 0.2, 0.4, ::testing::DoubleEq(0.6), 0.8, 1));
  EXPECT_THAT(axis_ticks(-7, 13, 4), ::testing::ElementsAre(-5, 0, 5, 10));
  EXPECT_LE(axis_ticks(1, std::nextafter(1, 2), 5).size(), 50u);
}

TEST(SvgChart, PointsThatAreNotFiniteAreGaps) {
  LineChart c;
  c.series = {{"x", Series::Style::line, 0, {{0, 1}, {1, 2}, {2, NAN}, {3, 1}, {4, 2}}}};
  const std::string drawn = svg(c);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 'M'), 2);
  EXPECT_THAT(drawn, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace ballast
