#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/error.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "memory/process_memory.h"
#include "report/secrets.h"
#include "train/recipes/distill_run.h"

namespace ballast::train {
namespace {

using student::TeacherPlacement;

// Of a matrix of the teacher's blocks, in the format it has.
std::size_t bytes_of_weight(const student::FitJob& job) {
  const WeightFormat f = job.pair.teacher_format;
  if (f == WeightFormat::f32) return 4;
  if (f != WeightFormat::stored) return is_fp8(f) ? 1 : 2;
  const auto& block = job.teacher[1].tensors;
  return size_of(std::ranges::max_element(block, {}, [](const StoredTensor& t) {
                   return t.data.shape.elements();
                 })->data.dtype);
}

// The sizes that WanDistiller advises; nothing: it is no larger, or its latent would have no place
// in the teacher.
std::optional<student::Config> smaller_student(student::Config c) {
  if (c.hidden_size <= 512 && c.depth <= 8 && c.image_size <= 512) return std::nullopt;
  c.hidden_size = std::min<std::int64_t>(c.hidden_size, 512);
  c.depth = std::min<std::int64_t>(c.depth, 8);
  c.image_size = std::min<std::int64_t>(c.image_size, 512);
  if (c.hidden_size % c.num_heads != 0) c.num_heads = 8;
  if (c.grid() < 2 || c.grid() % 2 != 0) return std::nullopt;
  return c;
}

std::string keys_changed(const student::Config& before, const student::Config& after) {
  std::string text;
  const auto say = [&](const char* key, std::int64_t student::Config::*size) {
    if (before.*size == after.*size) return;
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, after.*size);
  };
  say("hidden_size", &student::Config::hidden_size);
  say("depth", &student::Config::depth);
  say("num_heads", &student::Config::num_heads);
  say("image_size", &student::Config::image_size);
  return text;
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

std::vector<fit::Change> possible_changes(const DistillRun& run, const Refusal& refusal) {
  const student::FitJob& now = student::job_of(run.request);
  // Without a GPU --ram alone bounds both arenas.
  std::vector<fit::Change> all =
      fit::larger_budgets(refusal, !now.gpu && !run.config.machine.gpu, run.request.budget);
  const auto add = [&](std::string text, std::function<void(student::FitJob&)> change) {
    all.push_back({std::move(text), [&run, change = std::move(change)](fit::Request& r) {
                     change(student::job_of(r));
                     r.other_lines.front() = distill_batches_line(run, student::job_of(r).pair);
                   }});
  };
  if (now.placement == TeacherPlacement::device) {
    add("--teacher_device_strategy cpu",
        [](student::FitJob& j) { j.placement = TeacherPlacement::host; });
  }
  if (now.placement != TeacherPlacement::disk && now.placement != TeacherPlacement::automatic) {
    add("--teacher_device_strategy disk",
        [](student::FitJob& j) { j.placement = TeacherPlacement::disk; });
  }
  const auto precision = [&](const char* name, WeightFormat format, std::size_t bytes) {
    if (run.config.literal || bytes_of_weight(now) <= bytes) return;  // converts nothing
    add(fmt::format("--teacher_dtype {}", name),
        [format](student::FitJob& j) { j.pair.teacher_format = format; });
  };
  precision("bfloat16", WeightFormat::bf16, 2);
  precision("fp8", WeightFormat::f8_e4m3_rows, 1);
  if (const std::int64_t half = now.pair.student.batch / 2; half > 0) {
    add(fmt::format("--batch_size {}", half),
        [half](student::FitJob& j) { j.pair.student.batch = half; });
  }
  if (const auto smaller = smaller_student(run.student)) {
    const std::filesystem::path file(run.config.student_config);
    add(fmt::format("{} in {}", keys_changed(run.student, *smaller),
                    printable(file.filename().string(), 100)),
        [s = *smaller](student::FitJob& j) { j.pair.student.config = s; });
  }
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
      student::job_of(run.request).placement == TeacherPlacement::device
          ? ""
          : "a streamed teacher (--teacher_on_cpu), ");
  for (const PlannedChange& c : changes) {
    if (!c.fits || !c.text.starts_with("--") || c.text.find(" and ") != c.text.npos) continue;
    text += fmt::format(
        "\n\nfor example:\n  {} {}",
        shown_command("ballast distill", arguments_beside(run.config.arguments, c.text)), c.text);
    break;
  }
  return text;
}

}  // namespace ballast::train
