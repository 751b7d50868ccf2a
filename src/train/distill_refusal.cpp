#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/error.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "memory/process_memory.h"
#include "plan/budget_flag.h"
#include "report/secrets.h"
#include "train/distill_run.h"

namespace ballast::train {
namespace {

using student::PairRequest;
using student::TeacherPlace;

struct PairChange {
  std::string text;
  std::function<void(PairRequest&)> apply;
};

// In the order of WanDistiller's own list, those that change something. The disk comes behind a
// narrower teacher: it is slow.
std::vector<PairChange> changes_of(const DistillRun& run) {
  const PairRequest& now = run.request;
  std::vector<PairChange> all;
  if (now.place == TeacherPlace::device) {
    all.push_back(
        {"--teacher_device_strategy cpu", [](PairRequest& r) { r.place = TeacherPlace::host; }});
  }
  const auto precision = [&](const char* name, WeightFormat format, std::size_t bytes) {
    if (run.config.literal) return;  // converts nothing
    const auto& block = now.teacher[1].tensors;
    const std::size_t stored =
        size_of(std::ranges::max_element(block, {}, [](const StoredTensor& t) {
                  return t.data.shape.elements();
                })->data.dtype);
    const WeightFormat f = now.job.teacher_format;
    const std::size_t present = f == WeightFormat::stored ? stored
                                : f == WeightFormat::f32  ? 4
                                : is_fp8(f)               ? 1
                                                          : 2;
    if (present <= bytes) return;
    all.push_back({fmt::format("--teacher_dtype {}", name),
                   [format](PairRequest& r) { r.job.teacher_format = format; }});
  };
  precision("bfloat16", WeightFormat::bf16, 2);
  precision("fp8", WeightFormat::f8_e4m3_rows, 1);
  if (now.place != TeacherPlace::disk && now.place != TeacherPlace::automatic) {
    all.push_back(
        {"--teacher_device_strategy disk", [](PairRequest& r) { r.place = TeacherPlace::disk; }});
  }
  if (now.job.student.batch > 1) {
    const std::int64_t half = now.job.student.batch / 2;
    all.push_back({fmt::format("--batch_size {}", half),
                   [half](PairRequest& r) { r.job.student.batch = half; }});
  }
  const student::Config& c = run.student;
  const std::int64_t grid = std::min<std::int64_t>(c.image_size, 512) / c.patch_size;
  if ((c.hidden_size > 512 || c.depth > 8 || c.image_size > 512) && grid >= 2 && grid % 2 == 0) {
    student::Config s = c;
    s.hidden_size = std::min<std::int64_t>(s.hidden_size, 512);
    s.depth = std::min<std::int64_t>(s.depth, 8);
    s.image_size = std::min<std::int64_t>(s.image_size, 512);
    if (s.hidden_size % s.num_heads != 0) s.num_heads = 8;
    std::string text;
    const auto say = [&](const char* key, std::int64_t before, std::int64_t after) {
      if (before == after) return;
      text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, after);
    };
    say("hidden_size", c.hidden_size, s.hidden_size);
    say("depth", c.depth, s.depth);
    say("num_heads", c.num_heads, s.num_heads);
    say("image_size", c.image_size, s.image_size);
    const std::filesystem::path file(run.config.student_config);
    text += fmt::format(" in {}", printable(file.filename().string(), 100));
    all.push_back({text, [s](PairRequest& r) { r.job.student.config = s; }});
  }
  return all;
}

std::array<Bytes, kTiers.size()> needs_of(const student::PlannedPair& p) {
  return {p.needed(Tier::device), p.needed(Tier::host), p.needed(Tier::disk)};
}

PlannedChange planned(const DistillRun& run, const Refusal& refusal, const PairChange& change) {
  PairRequest r = run.request;
  change.apply(r);
  if (!r.other_lines.empty()) r.other_lines.front() = lessons_line(run, r.job);
  const auto outcome = fit_pair(r);
  PlannedChange c;
  c.text = change.text;
  if (const auto* fits = std::get_if<student::PlannedPair>(&outcome)) {
    c.fits = true;
    c.needed = needs_of(*fits);
    c.step_seconds = fits->seconds_per_step();
  } else {
    const auto& still = std::get<Refusal>(outcome);
    c.needed = still.needed;
    c.step_seconds = still.seconds_per_step;
    for (const Shortage& s : still.shortages) c.missing += s.needed - s.allowed;
  }
  const auto freed = [&](Tier t) {
    const auto i = static_cast<std::size_t>(t);
    return refusal.needed[i] - std::min(refusal.needed[i], c.needed[i]);
  };
  c.frees_device = freed(Tier::device);
  c.frees_host = freed(Tier::host);
  c.step_factor = refusal.seconds_per_step > 0 ? c.step_seconds / refusal.seconds_per_step : 1;
  return c;
}

// A flag's name, dashes for underscores, without its value.
std::string flag_name(std::string_view word) {
  std::string name(word.substr(0, word.find_first_of("= ")));
  std::ranges::replace(name, '_', '-');
  return name;
}

// Without flags that the change sets, and their values.
std::vector<std::string> arguments_beside(const std::vector<std::string>& arguments,
                                          const std::string& change) {
  std::vector<std::string> set;
  for (std::size_t at = change.find("--"); at != change.npos; at = change.find("--", at + 2)) {
    set.push_back(flag_name(std::string_view(change).substr(at)));
  }
  std::vector<std::string> kept;
  bool drops = false;
  for (const std::string& word : arguments) {
    if (word.starts_with("--")) drops = std::ranges::find(set, flag_name(word)) != set.end();
    if (!drops) kept.push_back(word);
  }
  return kept;
}

}  // namespace

std::vector<PlannedChange> possible_changes(const DistillRun& run, const Refusal& refusal) {
  std::vector<PlannedChange> all;
  for (const PairChange& c : changes_of(run)) all.push_back(planned(run, refusal, c));
  // More memory helps in any case. Without a GPU --ram alone bounds both arenas.
  const bool ram_bounds_all = run.request.backend.device == Device::cpu && run.config.gpu.empty();
  PairChange more;
  Budget budget = run.request.budget;
  for (const Shortage& s : refusal.shortages) {
    if (s.tier == Tier::device && ram_bounds_all) continue;
    const std::uint64_t megabytes = megabytes_for(s.needed);
    (s.tier == Tier::device ? budget.gpu : budget.host) = Bytes{megabytes * kMegabyte};
    if (!more.text.empty()) more.text += " ";
    more.text += larger_budget(run.request.budget, s.tier, megabytes);
  }
  if (ram_bounds_all) budget.gpu = budget.host;
  more.apply = [budget](PairRequest& r) { r.budget = budget; };
  all.push_back(planned(run, refusal, more));
  std::ranges::stable_sort(all, [](const PlannedChange& a, const PlannedChange& b) {
    if (a.fits != b.fits) return a.fits;
    return !a.fits && a.missing < b.missing;
  });
  return all;
}

std::string tried_text(const DistillRun& run, const Refusal& refusal,
                       std::span<const PlannedChange> changes) {
  std::string text = "teacher and student together";
  // Nothing is allocated before a plan fits: what is in use is the process itself.
  text += fmt::format("\n\n{:<8} {:>12} {:>12} {:>12} {:>12} {:>12}", "memory", "allocated",
                      "would reserve", "total", "free", "allowed");
  const auto row = [&](const char* name, Bytes allocated, Bytes reserved, std::string total,
                       std::string free, Bytes allowed) {
    text += fmt::format("\n{:<8} {:>12} {:>13} {:>12} {:>12} {:>12}", name, to_string(allocated),
                        to_string(reserved), total, free, to_string(allowed));
  };
  const bool gpu = run.request.backend.device == Device::cuda;
  if (gpu) {
    const bool here = gpu_is_usable();
    const GpuInfo info = here ? open_gpu() : GpuInfo{};
    row("GPU", here ? gpu_memory_of_process() : Bytes{}, refusal.needed[0],
        here ? to_string(info.memory) : "-", here ? to_string(gpu_memory().free) : "-",
        run.request.budget.gpu);
  }
  const Machine machine = read_machine();
  const auto said = [](const std::optional<Bytes>& b) { return b ? to_string(*b) : "-"; };
  const auto process = process_memory();
  row("RAM", process ? process->total() : Bytes{},
      refusal.needed[1] + (gpu ? Bytes{} : refusal.needed[0]), said(machine.ram),
      said(available_memory(machine)), run.request.budget.host);
  // The rest of WanDistiller's list.
  text += fmt::format(
      "\n\ntried already: {}recomputing the student's activations (--gradient_checkpointing), one "
      "allocation that cannot fragment (no allocator setting needed)",
      run.request.place == TeacherPlace::device ? "" : "a streamed teacher (--teacher_on_cpu), ");
  for (const PlannedChange& c : changes) {
    if (!c.fits || !c.text.starts_with("--")) continue;
    text += fmt::format(
        "\n\nfor example:\n  {} {}",
        shown_command("ballast distill", arguments_beside(run.config.arguments, c.text)), c.text);
    break;
  }
  return text;
}

}  // namespace ballast::train
