#include "report/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "core/progress.h"
#include "plan/display_names.h"
#include "report/html_text.h"
#include "report/svg_chart.h"

namespace ballast {
namespace {

// Logs keep names of programs and roles.
std::string_view role_text(std::string_view name) {
  for (int r = 0; r < kRoles; ++r) {
    if (name_of(static_cast<Role>(r)) == name) return display_name(static_cast<Role>(r));
  }
  return name;
}

// "step.1" -> "step 1"
std::string phase_text(std::string_view program) {
  const std::size_t end = std::min(program.find('.'), program.size());
  std::string text = std::string(phase_name(program)) + std::string(program.substr(end));
  std::ranges::replace(text, '.', ' ');
  return text;
}

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--ink:#1c2024;--soft:#606870;--line:#d9dde1;--panel:#f5f7f9;
--c0:#1f6fb4;--c1:#c8540a;--c2:#2d8a4e;--c3:#a02c6d}
@media (prefers-color-scheme:dark){:root{--bg:#15181b;--ink:#e6e9ec;--soft:#9aa4ad;--line:#33393f;
--panel:#1d2125;--c0:#6db3f2;--c1:#ff9f5a;--c2:#6fcf8e;--c3:#f08cc0}}
body{background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0 auto;
padding:24px 20px 60px;max-width:1000px}
h1{font-size:1.5em;margin:0 0 4px}h2{font-size:1.15em;margin:34px 0 10px;border-bottom:1px solid var(--line)}
.sub{color:var(--soft);margin:0 0 16px}.empty{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:10px}
.tiles div{background:var(--panel);border-radius:6px;padding:8px 14px;min-width:120px}
.tiles b{display:block;font-size:1.25em}.tiles span{color:var(--soft);font-size:.85em}
table{border-collapse:collapse;width:100%;font-size:.92em}
th,td{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td.n,th.n{text-align:right}td.n,th.n,td.t{white-space:nowrap}
pre{background:var(--panel);padding:12px;border-radius:6px;overflow-x:auto;font-size:.85em}
code{font-size:.92em;overflow-wrap:anywhere}
figure{margin:0 0 18px}figcaption{font-weight:600;margin-bottom:4px}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg text.y{text-anchor:end}svg text.x{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
svg path{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
svg path.faint{stroke-width:1;opacity:.4}svg path.band{stroke-width:7;opacity:.45}
svg .level{stroke:var(--c);stroke-width:1.5;stroke-dasharray:6 4}
svg .dots,svg .bar{fill:var(--c)}
.key{font-weight:400;font-size:.88em;color:var(--soft);margin-left:14px;white-space:nowrap}
.key::before{content:"";display:inline-block;width:18px;margin-right:6px;vertical-align:middle;
border-top:3px solid var(--c)}
.key.faint::before{opacity:.4}.key.band::before{opacity:.45;border-top-width:7px}.key.level::before{border-top-style:dashed}
.key.dots::before{width:8px;height:8px;border:0;border-radius:50%;background:var(--c)}
.previews{display:flex;flex-wrap:wrap;gap:14px}.previews figure{margin:0;max-width:320px}
.previews video,.previews img{width:100%;min-width:160px;border-radius:4px;image-rendering:auto}
.previews figcaption{font-weight:400;font-size:.85em;color:var(--soft)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:6px 24px}
@media print{body{max-width:none}}
)css";

std::string seconds_text(double s) {
  if (!std::isfinite(s)) return "-";
  if (s >= 120) return to_string(std::chrono::seconds(std::llround(std::min(s, 1e9))));
  if (s >= 1) return fmt::format("{:.2f} s", s);
  return fmt::format("{:.1f} ms", s * 1e3);
}

std::string bytes_text(double b) {
  return to_string(Bytes{static_cast<std::uint64_t>(std::max(b, 0.0))});
}

std::string number(double v) { return std::isfinite(v) ? fmt::format("{:.5g}", v) : "not finite"; }

double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

class Page {
 public:
  explicit Page(const RunHistory& h) : h_(h), info_(h.info.value_or(RunInfo{})) {
    for (const StepRecord& s : h.steps) {
      losses_.push_back(s.loss);
      const auto more = [](Bytes& most, Bytes b) { most = std::max(most, b); };
      more(most_.device, s.measured.device);
      more(most_.host, s.measured.host);
      more(most_.disk, s.measured.disk);
      more(most_.ram, s.measured.ram);
    }
    smooth_ = smoothed(losses_);
  }

  std::string make() {
    const std::string title = info_.title.empty() ? "Training run" : info_.title;
    out_ = fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta "
        "name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>"
        "</head>\n<body>\n<h1>{0}</h1>\n",
        html(title), kStyle);
    summary();
    section("Loss");
    loss();
    previews();
    section("Memory, planned and measured");
    memory();
    section("Time");
    time();
    plan();
    events();
    pairs("Settings", info_.summary);
    if (!info_.notes.empty()) {
      section("Notes");
      out_ += "<ul>\n";
      for (const std::string& n : info_.notes) out_ += fmt::format("<li>{}</li>\n", html(n));
      out_ += "</ul>\n";
    }
    if (!info_.config.empty()) {
      section("Config");
      out_ += fmt::format("<pre>{}</pre>\n", html(info_.config));
    }
    pairs("Environment", info_.environment);
    return std::move(out_) + "</body></html>\n";
  }

 private:
  void section(std::string_view title) { out_ += fmt::format("<h2>{}</h2>\n", html(title)); }

  void tile(std::string_view name, const std::string& value) {
    out_ += fmt::format("<div><span>{}</span><b>{}</b></div>\n", html(name), html(value));
  }

  void pairs(std::string_view title, const RunInfo::Pairs& all) {
    if (all.empty()) return;
    section(title);
    out_ += "<table>\n";
    for (const auto& [name, value] : all) {
      out_ += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", html(name), html(value));
    }
    out_ += "</table>\n";
  }

  void summary() {
    out_ += "<p class=\"sub\">";
    if (!info_.started.empty()) out_ += fmt::format("started {}", html(info_.started));
    if (!info_.command.empty()) out_ += fmt::format(" · <code>{}</code>", html(info_.command));
    if (h_.starts > 1) out_ += fmt::format(" · started {} times", h_.starts);
    out_ += "</p>\n<div class=\"tiles\">\n";
    const std::int64_t done = h_.steps.empty() ? 0 : h_.steps.back().step;
    tile("steps", info_.total_steps > 0 ? fmt::format("{} of {}", done, info_.total_steps)
                                        : fmt::format("{}", done));
    if (!h_.steps.empty()) {
      tile("epoch", fmt::format("{}", h_.steps.back().epoch));
      tile("loss, smoothed", number(smooth_.back()));
      double seconds = 0;
      std::vector<double> each;
      for (const StepRecord& s : h_.steps) {
        each.push_back(s.seconds);
        if (std::isfinite(s.seconds)) seconds += s.seconds;
      }
      tile("median step", seconds_text(median(each)));
      tile("time in steps", seconds_text(seconds));
      tile("RAM, most / planned", fmt::format("{} / {}", most_.ram, h_.steps.back().planned.ram));
    }
    if (!h_.evals.empty()) tile("last evaluation", number(h_.evals.back().loss));
    out_ += "</div>\n";
    if (h_.unreadable > 0) {
      out_ += fmt::format("<p class=\"empty\">{} lines of the run log could not be read.</p>\n",
                          h_.unreadable);
    }
  }

  // Files that stand beside the page, the newest first.
  void previews() {
    constexpr std::size_t kMax = 60;
    std::vector<const EventRecord*> all;
    for (const EventRecord& e : h_.events) {
      if (e.event == "preview") all.push_back(&e);
    }
    if (all.empty()) return;
    section("Previews");
    out_ += "<div class=\"previews\">\n";
    std::ranges::reverse(all);
    for (std::size_t i = 0; i < std::min(all.size(), kMax); ++i) {
      const std::string& text = all[i]->text;  // "previews/step000200_00.mp4: a red circle"
      const std::size_t end = std::min(text.find(": "), text.size());
      const std::string file = html(text.substr(0, end));
      const std::string prompt = html(end == text.size() ? "" : text.substr(end + 2));
      out_ += file.ends_with(".mp4")
                  ? fmt::format("<figure><video src=\"{}\" controls loop muted></video>", file)
                  : fmt::format("<figure><img src=\"{}\" alt=\"\">", file);
      out_ += fmt::format("<figcaption>step {}: {}</figcaption></figure>\n", all[i]->step, prompt);
    }
    out_ += "</div>\n";
    if (all.size() > kMax) {
      out_ += fmt::format("<p class=\"empty\">{} earlier ones are in the run's folder</p>\n",
                          all.size() - kMax);
    }
  }

  Series of_steps(std::string name, Series::Style style, int color, auto&& value) const {
    Series s = {std::move(name), style, color, {}};
    for (const StepRecord& r : h_.steps) s.points.emplace_back(r.step, value(r));
    return s;
  }

  LineChart chart(std::string title) const {
    LineChart c;
    c.title = std::move(title);
    c.x_label = "step";
    return c;
  }

  void scores() {
    if (h_.scores.empty()) return;
    LineChart c = chart("Scores");
    c.width = kWideChart;
    c.from_zero = true;
    for (const ScoreRecord& r : h_.scores) {
      auto s = std::ranges::find(c.series, r.name, &Series::name);
      if (s == c.series.end()) {
        if (c.series.size() == 4) continue;
        c.series.push_back({r.name, Series::Style::line, static_cast<int>(c.series.size()), {}});
        s = c.series.end() - 1;
      }
      s->points.emplace_back(r.step, r.value);
    }
    out_ += svg(c);
  }

  void loss() {
    LineChart c = chart("Loss");
    c.width = kWideChart;
    c.series.push_back(
        of_steps("each step", Series::Style::faint, 0, [](const StepRecord& r) { return r.loss; }));
    Series smooth = {"smoothed", Series::Style::line, 0, {}};
    for (std::size_t i = 0; i < smooth_.size(); ++i) {
      smooth.points.emplace_back(h_.steps[i].step, smooth_[i]);
    }
    c.series.push_back(std::move(smooth));
    std::vector<std::string> names;
    for (const EvalRecord& e : h_.evals) {
      if (std::ranges::find(names, e.name) == names.end()) names.push_back(e.name);
    }
    for (std::size_t i = 0; i < names.size() && i < 3; ++i) {
      Series dots = {names[i], Series::Style::dots, 1 + static_cast<int>(i), {}};
      for (const EvalRecord& e : h_.evals) {
        if (e.name == names[i]) dots.points.emplace_back(e.step, e.loss);
      }
      c.series.push_back(std::move(dots));
    }
    out_ += svg(c);
    scores();
    out_ += "<div class=\"grid2\">\n";
    LineChart rate = chart("Learning rate");
    rate.from_zero = true;
    rate.series.push_back(
        of_steps("", Series::Style::line, 2, [](const StepRecord& r) { return r.lr; }));
    LineChart norm = chart("Gradient norm");
    norm.from_zero = true;
    norm.series.push_back(
        of_steps("", Series::Style::line, 3, [](const StepRecord& r) { return r.grad_norm; }));
    out_ += svg(rate) + svg(norm) + "</div>\n";
  }

  void tier(std::string title, Bytes MemoryNumbers::*part) {
    const auto used = [&](const StepRecord& r) {
      return (r.planned.*part).count > 0 || (r.measured.*part).count > 0;
    };
    if (std::ranges::none_of(h_.steps, used)) return;
    LineChart c = chart(std::move(title));
    c.from_zero = true;
    c.format_y = bytes_text;
    c.series.push_back(of_steps("planned", Series::Style::band, 1, [&](const StepRecord& r) {
      return static_cast<double>((r.planned.*part).count);
    }));
    c.series.push_back(of_steps("measured", Series::Style::line, 0, [&](const StepRecord& r) {
      return static_cast<double>((r.measured.*part).count);
    }));
    // A budget far above would press everything else to the floor; the table below has it.
    const double allowed = static_cast<double>((info_.allowed.*part).count);
    const double planned = static_cast<double>((h_.steps.back().planned.*part).count);
    if (allowed > 0 && allowed <= 2 * planned) {
      c.series.push_back({"allowed", Series::Style::level, 3, {{0, allowed}}});
    }
    out_ += svg(c);
  }

  bool on_gpu() const {
    return std::ranges::any_of(info_.environment,
                               [](const auto& e) { return e.first == "device"; });
  }

  void memory() {
    if (h_.steps.empty()) {
      out_ += "<p class=\"empty\">No steps yet.</p>\n";
      return;
    }
    out_ += "<div class=\"grid2\">\n";
    const std::string device(display_name_of("device", on_gpu()));
    const std::string host(display_name_of("host", on_gpu()));
    tier(device, &MemoryNumbers::device);
    tier(host, &MemoryNumbers::host);
    tier("Disk", &MemoryNumbers::disk);
    tier("RAM of the process", &MemoryNumbers::ram);
    out_ +=
        "</div>\n<table>\n<tr><th>memory</th><th class=\"n\">planned</th><th class=\"n\">most "
        "measured</th><th class=\"n\">allowed</th></tr>\n";
    struct Row {
      std::string_view name;
      Bytes planned, most, allowed;
    };
    const MemoryNumbers& p = h_.steps.back().planned;
    const MemoryNumbers& a = info_.allowed;
    for (const Row& r :
         {Row{device, p.device, most_.device, a.device}, Row{host, p.host, most_.host, a.host},
          Row{"disk", p.disk, most_.disk, a.disk},
          Row{"RAM of the process", p.ram, most_.ram, a.ram}}) {
      out_ += fmt::format(
          "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
          "class=\"n\">{}</td></tr>\n",
          r.name, r.planned, r.most, r.allowed.count > 0 ? to_string(r.allowed) : "-");
    }
    out_ += "</table>\n";
  }

  void time() {
    LineChart c = chart("Seconds per step");
    c.from_zero = true;
    c.format_y = seconds_text;
    c.series.push_back(
        of_steps("", Series::Style::line, 0, [](const StepRecord& r) { return r.seconds; }));
    BarChart parts;
    parts.title = "Mean step: busy time of each part (they overlap), and waiting";
    parts.format = seconds_text;
    StepTimes mean;
    for (const StepRecord& r : h_.steps) {
      std::array<double, 6> add{};
      std::size_t i = 0;
      StepTimes::each(r.times, [&](const char*, double t) { add[i++] = t; });
      i = 0;
      StepTimes::each(mean, [&](const char*, double& t) {
        t += add[i++] / static_cast<double>(h_.steps.size());
      });
    }
    StepTimes::each(mean, [&](const char* name, double t) { parts.bars.emplace_back(name, t); });
    out_ += "<div class=\"grid2\">\n" + svg(c) + svg(parts) + "</div>\n";
  }

  void plan() {
    if (info_.plan.empty()) return;
    section("Plan by phase");
    out_ +=
        "<table>\n<tr><th>phase</th><th>memory</th><th class=\"n\">peak</th><th class=\"n\">lower "
        "bound</th><th>made of</th></tr>\n";
    for (const PlanRow& row : info_.plan) {
      std::string roles;
      for (const auto& [name, bytes] : row.roles) {
        roles += fmt::format("{}{} {}", roles.empty() ? "" : ", ", role_text(name), bytes);
      }
      out_ += fmt::format(
          "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>"
          "</tr>\n",
          html(phase_text(row.phase)), html(display_name_of(row.tier, on_gpu())), row.peak,
          row.lower_bound, html(roles));
    }
    out_ += "</table>\n";
  }

  void events() {
    if (h_.events.empty()) return;
    constexpr std::size_t kMax = 200;
    section("Events");
    out_ += "<table>\n<tr><th>time</th><th class=\"n\">step</th><th>event</th><th></th></tr>\n";
    const std::size_t begin = h_.events.size() - std::min(h_.events.size(), kMax);
    if (begin > 0) {
      out_ += fmt::format("<tr><td colspan=\"4\">{} earlier ones are in the run log</td></tr>\n",
                          begin);
    }
    for (std::size_t i = begin; i < h_.events.size(); ++i) {
      const EventRecord& e = h_.events[i];
      out_ += fmt::format(
          "<tr><td class=\"t\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>\n",
          e.time > 0 ? iso_time(e.time) : "-", e.step, html(e.event), html(e.text));
    }
    out_ += "</table>\n";
  }

  const RunHistory& h_;
  RunInfo info_;
  MemoryNumbers most_;
  std::vector<double> losses_, smooth_;
  std::string out_;
};

}  // namespace

std::vector<double> smoothed(std::span<const double> losses) {
  const double window = std::clamp(static_cast<double>(losses.size()) / 20, 5.0, 200.0);
  const double keep = 1 - 1 / window;
  double sum = 0, weight = 0;
  std::vector<double> out;
  out.reserve(losses.size());
  for (const double loss : losses) {
    if (std::isfinite(loss)) {
      sum = keep * sum + loss;
      weight = keep * weight + 1;
    }
    out.push_back(std::isfinite(loss) ? sum / weight : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

std::string html_report(const RunHistory& history) { return Page(history).make(); }

}  // namespace ballast
