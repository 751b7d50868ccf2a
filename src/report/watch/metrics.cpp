#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "core/version.h"
#include "report/json_text.h"
#include "report/watch/routes.h"

namespace ballast {
namespace {

// Collects the lines of one name: the format wants them together.
class Metrics {
 public:
  explicit Metrics(std::string& out) : out_(out) {}

  void name(std::string_view name, std::string_view help) {
    name_ = name;
    help_ = help;
  }
  void value(const std::string& labels, double v) {
    if (!help_.empty()) {
      fmt::format_to(std::back_inserter(out_), "# HELP ballast_{0} {1}\n# TYPE ballast_{0} gauge\n",
                     name_, help_);
      help_ = {};
    }
    fmt::format_to(std::back_inserter(out_), "ballast_{}{{{}}} ", name_, labels);
    if (std::isnan(v)) {
      out_ += "NaN\n";
    } else if (std::isinf(v)) {
      out_ += v > 0 ? "+Inf\n" : "-Inf\n";
    } else {
      fmt::format_to(std::back_inserter(out_), "{}\n", v);
    }
  }

 private:
  std::string& out_;
  std::string_view name_, help_;
};

std::string run_labels(const MetricsOfRun& r) {
  return fmt::format("run=\"{}\",rank=\"0\"", prometheus_label(r.run.name()));
}

void put_steps(Metrics& m, std::span<const MetricsOfRun> runs) {
  const auto each = [&](std::string_view name, std::string_view help, auto&& value) {
    m.name(name, help);
    for (const MetricsOfRun& r : runs) {
      if (r.run.summary().last_step()) m.value(run_labels(r), value(*r.run.summary().last_step()));
    }
  };
  each("step", "Steps done.", [](const StepRecord& s) { return static_cast<double>(s.step); });
  m.name("steps_total", "Steps of the whole run.");
  for (const MetricsOfRun& r : runs) {
    if (r.state.record) {
      m.value(run_labels(r), static_cast<double>(r.state.record->start.total_steps));
    }
  }
  each("loss", "Loss of the last step.", [](const StepRecord& s) { return s.loss; });
  m.name("loss_smoothed", "Loss, averaged over the last steps.");
  for (const MetricsOfRun& r : runs) {
    if (r.run.summary().last_step()) m.value(run_labels(r), r.run.summary().smoothed_loss());
  }
  each("learning_rate", "Learning rate of the last step.",
       [](const StepRecord& s) { return s.lr; });
  each("grad_norm", "Norm of the gradients of the last step.",
       [](const StepRecord& s) { return s.grad_norm; });
  each("step_seconds", "Seconds of the last step.", [](const StepRecord& s) { return s.seconds; });
  m.name("step_predicted_seconds", "Seconds of a step as planned.");
  for (const MetricsOfRun& r : runs) {
    if (r.predicted_seconds) m.value(run_labels(r), *r.predicted_seconds);
  }
  m.name("lane_seconds", "Seconds of the last step that a lane was busy or waiting.");
  for (const MetricsOfRun& r : runs) {
    if (!r.run.summary().last_step()) continue;
    StepTimes::each(r.run.summary().last_step()->times, [&](const char* lane, double seconds) {
      m.value(fmt::format("{},lane=\"{}\"", run_labels(r), lane), seconds);
    });
  }
}

void put_memory_of(Metrics& m, const MetricsOfRun& r) {
  const FlightRecord& record = *r.state.record;
  const auto each = [&](const char* kind, const MemoryNumbers& numbers, bool zero_is_none) {
    MemoryNumbers::each(numbers, [&](const char* tier, Bytes b) {
      if (zero_is_none && b.count == 0) return;
      m.value(fmt::format("{},tier=\"{}\",kind=\"{}\"", run_labels(r), tier, kind),
              static_cast<double>(b.count));
    });
  };
  each("planned", record.start.planned, false);
  each("allowed", record.start.allowed, true);
  each("measured", record.state.measured, false);
  each("most", record.state.most, false);
}

}  // namespace

std::string prometheus_label(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = utf8_length(text);
    if (n > 1) {
      out += text.substr(0, n);
    } else if (n == 0) {
      out += "\xEF\xBF\xBD";  // as in JSON
    } else if (text[0] == '\n') {
      out += "\\n";
    } else {
      if (text[0] == '\\' || text[0] == '"') out += '\\';
      out += text[0];
    }
    text.remove_prefix(std::max<std::size_t>(n, 1));
  }
  return out;
}

std::string prometheus_text(std::span<const MetricsOfRun> runs, double now) {
  std::string out;
  Metrics m(out);
  put_steps(m, runs);
  m.name("memory_bytes", "Memory by tier: planned, allowed, measured now, most so far.");
  for (const MetricsOfRun& r : runs) {
    if (r.state.record) put_memory_of(m, r);
  }
  m.name("checkpoint_age_seconds", "Age of the newest checkpoint.");
  for (const MetricsOfRun& r : runs) {
    if (const auto c = r.run.summary().checkpoint()) m.value(run_labels(r), now - c->time);
  }
  m.name("alive", "1 while the run's process is there.");
  for (const MetricsOfRun& r : runs) m.value(run_labels(r), r.state.is_running() ? 1 : 0);
  m.name("info", "What the run is.");
  for (const MetricsOfRun& r : runs) {
    if (!r.run.summary().info()) continue;
    const RunInfo& info = *r.run.summary().info();
    std::string policy;
    for (const auto& [name, value] : info.summary) {
      if (name == "policy") policy = value;
    }
    m.value(fmt::format("{},title=\"{}\",version=\"{}\",policy=\"{}\"", run_labels(r),
                        prometheus_label(info.title), version(), prometheus_label(policy)),
            1);
  }
  return out;
}

}  // namespace ballast
