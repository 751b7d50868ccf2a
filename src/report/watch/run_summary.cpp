#include "report/watch/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/to_size.h"
#include "report/json_text.h"

namespace ballast {
namespace {

constexpr std::size_t kMaxRecords = 512;
constexpr double kKeep = 0.98;  // of the smoothed loss, from step to step

// The oldest half goes at once, so that each record is moved once or twice.
template <class T>
void keep_newest(std::vector<T>& all, std::size_t most) {
  if (all.size() < 2 * most) return;
  all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most));
}

void join(StepBucket& a, const StepBucket& b) {
  a.last = b.last;
  a.count += b.count;
  a.time = b.time;
  if (b.losses > 0) {
    a.loss_least = a.losses > 0 ? std::min(a.loss_least, b.loss_least) : b.loss_least;
    a.loss_most = a.losses > 0 ? std::max(a.loss_most, b.loss_most) : b.loss_most;
    a.loss_sum += b.loss_sum;
    a.losses += b.losses;
  }
  a.lr = b.lr;
  a.norm_most = std::max(a.norm_most, b.norm_most);
  a.seconds += b.seconds;
  a.seconds_most = std::max(a.seconds_most, b.seconds_most);
  a.times.compute += b.times.compute;
  a.times.upload += b.times.upload;
  a.times.disk += b.times.disk;
  a.times.waiting += b.times.waiting;
  a.times.data += b.times.data;
  a.times.save += b.times.save;
  a.measured.device = std::max(a.measured.device, b.measured.device);
  a.measured.host = std::max(a.measured.host, b.measured.host);
  a.measured.disk = std::max(a.measured.disk, b.measured.disk);
  a.measured.ram = std::max(a.measured.ram, b.measured.ram);
}

double finite(double v) { return std::isfinite(v) ? v : 0; }

void put_short(std::string& out, double v) {
  if (std::isfinite(v)) {
    fmt::format_to(std::back_inserter(out), "{:.6g}", v);
  } else {
    out += "null";
  }
}

// What a point of "steps" has, in order.
constexpr std::string_view kColumns =
    "[\"first\",\"last\",\"time\",\"loss\",\"loss_least\",\"loss_most\",\"lr\",\"grad_norm\","
    "\"seconds\",\"seconds_most\",\"compute\",\"upload\",\"disk\",\"waiting\",\"data\",\"save\","
    "\"mem_device\",\"mem_host\",\"mem_disk\",\"mem_ram\"]";

void put_bucket(std::string& out, const StepBucket& b) {
  fmt::format_to(std::back_inserter(out), "[{},{},{:.1f}", b.first, b.last, b.time);
  const auto number = [&](double v) {
    out += ',';
    put_short(out, v);
  };
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const auto count = static_cast<double>(b.count);
  number(b.losses > 0 ? b.loss_sum / static_cast<double>(b.losses) : nothing);
  number(b.losses > 0 ? b.loss_least : nothing);
  number(b.losses > 0 ? b.loss_most : nothing);
  number(b.lr);
  number(b.norm_most);
  number(b.seconds / count);
  number(b.seconds_most);
  StepTimes::each(b.times, [&](const char*, double t) { number(t / count); });
  MemoryNumbers::each(b.measured, [&](const char*, Bytes m) {
    fmt::format_to(std::back_inserter(out), ",{}", m.count);
  });
  out += ']';
}

// The file of "previews/step000200_00.mp4: a red circle"; "" where it is none.
std::string_view preview_file(std::string_view text) {
  constexpr std::string_view kFolder = "previews/";
  if (!text.starts_with(kFolder)) return {};
  text.remove_prefix(kFolder.size());
  return text.substr(0, text.find(": "));
}

void put_event(std::string& out, const EventRecord& e) {
  fmt::format_to(std::back_inserter(out), "{{\"time\":{:.3f},\"step\":{},\"event\":", e.time,
                 e.step);
  put_json_text(out, e.event);
  out += ",\"text\":";
  put_json_text(out, e.text);
  out += '}';
}

// The newest, at most so many, joined by commas.
template <class T, class Put>
void put_newest(std::string& out, std::string_view name, const std::vector<T>& all, Put&& put) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":[", name);
  const std::size_t begin = all.size() > kMaxRecords ? all.size() - kMaxRecords : 0;
  for (std::size_t i = begin; i < all.size(); ++i) {
    if (i > begin) out += ',';
    put(all[i]);
  }
  out += ']';
}

}  // namespace

void RunSummary::add(std::string_view line) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  if (!add_log_line(rest_, line)) {
    ++rest_.unreadable;
    return;
  }
  if (!rest_.steps.empty()) {
    add_step(rest_.steps.back());
    rest_.steps.clear();
  }
  if (!rest_.events.empty()) {
    const EventRecord& e = rest_.events.back();
    if (e.event == "checkpoint" && (!checkpoint_ || e.time >= checkpoint_->time)) checkpoint_ = e;
    // They have a list of their own.
    if (!preview_file(e.text).empty() && e.event == "preview") {
      previews_.push_back(e);
      rest_.events.pop_back();
    }
  }
  keep_newest(rest_.evals, kMaxRecords);
  keep_newest(rest_.scores, kMaxRecords);
  keep_newest(rest_.events, kMaxRecords);
  keep_newest(previews_, kMaxRecords);
}

void RunSummary::add_step(const StepRecord& r) {
  const bool good = std::isfinite(r.loss);
  if (good) {
    smooth_ = kKeep * smooth_ + r.loss;
    weight_ = kKeep * weight_ + 1;
  }
  StepBucket b = {.first = r.step,
                  .last = r.step,
                  .count = 1,
                  .time = r.time,
                  .loss_sum = good ? r.loss : 0,
                  .loss_least = good ? r.loss : 0,
                  .loss_most = good ? r.loss : 0,
                  .losses = good ? 1 : 0,
                  .lr = finite(r.lr),
                  .norm_most = finite(r.grad_norm),
                  .seconds = finite(r.seconds),
                  .seconds_most = finite(r.seconds),
                  .times = r.times,
                  .measured = r.measured};
  StepTimes::each(b.times, [](const char*, double& t) { t = finite(t); });
  last_ = r;
  if (!buckets_.empty() && buckets_.back().count < width_) {
    join(buckets_.back(), b);
    return;
  }
  if (buckets_.size() == to_size(kMaxSteps)) {
    halve();
    if (buckets_.back().count < width_) return join(buckets_.back(), b);
  }
  buckets_.push_back(b);
}

void RunSummary::halve() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (i % 2 == 0) {
      buckets_[i / 2] = buckets_[i];
    } else {
      join(buckets_[i / 2], buckets_[i]);
    }
  }
  buckets_.resize((buckets_.size() + 1) / 2);
  width_ *= 2;
}

double RunSummary::mean_step_seconds() const {
  constexpr std::size_t kPoints = 20;
  double seconds = 0, count = 0;
  for (std::size_t i = buckets_.size() - std::min(buckets_.size(), kPoints); i < buckets_.size();
       ++i) {
    seconds += buckets_[i].seconds;
    count += static_cast<double>(buckets_[i].count);
  }
  return count > 0 ? seconds / count : 0;
}

bool RunSummary::has_preview(std::string_view file) const {
  return std::ranges::any_of(previews_,
                             [&](const EventRecord& e) { return preview_file(e.text) == file; });
}

void RunSummary::put_json(std::string& out) const {
  constexpr std::size_t kPointBytes = 140;  // so that the text does not grow by doubling
  out.reserve(out.size() + buckets_.size() * kPointBytes + (64 << 10));
  fmt::format_to(std::back_inserter(out), "\"starts\":{},\"unreadable\":{},\"steps_per_point\":{}",
                 rest_.starts, rest_.unreadable, width_);
  out += ",\"info\":";
  out += rest_.info ? to_json(*rest_.info) : "null";
  out += ",\"columns\":";
  out += kColumns;
  out += ",\"steps\":[";
  for (const StepBucket& b : buckets_) {
    if (&b != buckets_.data()) out += ',';
    put_bucket(out, b);
  }
  out += ']';
  const auto value = [&](const auto& e, double v) {
    fmt::format_to(std::back_inserter(out), "{{\"time\":{:.3f},\"step\":{},\"name\":", e.time,
                   e.step);
    put_json_text(out, e.name);
    out += ",\"value\":";
    put_json_number(out, v);
    out += '}';
  };
  put_newest(out, "evals", rest_.evals, [&](const EvalRecord& e) { value(e, e.loss); });
  put_newest(out, "scores", rest_.scores, [&](const ScoreRecord& e) { value(e, e.value); });
  put_newest(out, "events", rest_.events, [&](const EventRecord& e) { put_event(out, e); });
  put_newest(out, "previews", previews_, [&](const EventRecord& e) { put_event(out, e); });
}

}  // namespace ballast
