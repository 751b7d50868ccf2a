#include "app/bench/wan_result.h"

#include <algorithm>

#include "core/short_number.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

Bytes whole_bytes(double bytes) { return Bytes{static_cast<std::uint64_t>(bytes)}; }

}  // namespace

void WanBenchResult::Steps::sort() {
  for (auto* numbers : {&seconds, &stalls, &disk_alone, &disk_ratios}) std::ranges::sort(*numbers);
}

Json WanBenchResult::json() const {
  Json j = {{"model", model},
            {"mode", mode},
            {"tokens", tokens},
            {"batch", batch},
            {"fp8_matmul", fp8_matmul},
            {"policy", policy},
            {"ms", median(steps.seconds) * 1e3},
            {"ms_min", steps.seconds.front() * 1e3},
            {"ms_max", steps.seconds.back() * 1e3},
            {"tflops", flops / median(steps.seconds) * 1e-12},
            {"stall_ms", median(steps.stalls) * 1e3},
            {"predicted_ms", predicted * 1e3},
            {"plan_seconds", first.planned},
            {"load_seconds", first.loaded},
            {"libraries_waited_seconds", opening.waited},
            {"first_step_seconds", first.done},
            {"first_step_read_bytes", first.read},
            {"first_step_disk_busy_seconds", first.reading.busy},
            {"first_step_disk_waiting_seconds", first.reading.waiting},
            {"weights_file", weights_file},
            {"read_bytes", read},
            {"disk_bytes_per_second", median(steps.disk_alone)},
            {"disk_ratio", median(steps.disk_ratios)},
            {"first_step_disk_bytes_per_second", first.disk_around},
            {"disk_bytes_per_second_before", first.disk_before},
            {"verify_weights", verify_weights},
            {"verified_bytes", verifying.bytes},
            {"verifying_ms", verifying.seconds * 1e3},
            {"disk_busy_ms", reading.busy * 1e3},
            {"disk_waiting_ms", reading.waiting * 1e3},
            {"loss", loss}};
  memory.add_to(j);
  j["host_by_moment"] = host_by_moment;
  if (first.disk_before > 0) j["predicted_ms_disk_before"] = first.predicted_step * 1e3;
  if (kernels) j["kernels"] = kernels->json();
  return j;
}

std::string WanBenchResult::text() const {
  const double seconds = median(steps.seconds);
  std::string text = fmt::format(
      "{} {} of {} tokens{}: {:.1f} ms ({:.1f} to {:.1f}), {}, stall {:.1f} ms, "
      "predicted {:.1f} ms\n",
      model, mode, tokens, batch > 1 ? fmt::format(" x {}", batch) : "", seconds * 1e3,
      steps.seconds.front() * 1e3, steps.seconds.back() * 1e3, flop_rate(flops / seconds),
      median(steps.stalls) * 1e3, predicted * 1e3);
  text += memory.text() + disk_text();
  return text +
         fmt::format(
             "first step {:.1f} s after the start: planned after {:.1f} s, loaded after {:.1f} s, "
             "waited "
             "{:.1f} s for libraries{}\n",
             first.done, first.planned, first.loaded, opening.waited,
             first.disk_before > 0
                 ? fmt::format(
                       "; the {} read until then take the disk alone {:.1f} s by what it gave "
                       "before, {:.1f} by that before and after; in the step its threads read for "
                       "{:.1f} s and waited {:.1f}",
                       whole_bytes(first.read), first.read / first.disk_before,
                       first.read / first.disk_around, first.reading.busy, first.reading.waiting)
                 : "");
}

std::string WanBenchResult::disk_text() const {
  const double disk = median(steps.disk_alone);
  if (disk <= 0 || read <= 0) return "";
  std::string text = fmt::format(
      "{} read at {:.2f} GB/s, the disk's threads read for {:.2f} s and waited {:.2f}; the disk "
      "alone around each step, {} reads at once: {:.2f} GB/s, {:.2f} s, and a step {:.2f} x of "
      "it\n",
      whole_bytes(read), read / median(steps.seconds) * 1e-9, reading.busy, reading.waiting,
      readers, disk * 1e-9, read / disk, median(steps.disk_ratios));
  if (verifying.bytes > 0) {
    text += fmt::format(
        "--verify-weights {}: checksums of {} a step took the disk's threads {:.1f} ms of their "
        "{:.0f} ms, {:.1f} GB/s each\n",
        verify_weights, whole_bytes(verifying.bytes), verifying.seconds * 1e3,
        reading.busy * readers * 1e3, verifying.bytes / verifying.seconds * 1e-9);
  }
  return text + fmt::format(
                    "the disk alone just before the first step: {:.2f} GB/s; with that, {:.1f} ms "
                    "are predicted\n",
                    first.disk_before * 1e-9, first.predicted_step * 1e3);
}

std::string WanBenchResult::details() const {
  std::string text = "by program:\n" + programs + (kernels ? *kernels : KernelTimes()).table() +
                     "from the start:\n" + timeline;
  text +=
      fmt::format("  waited {:.2f} s for memory, {:.2f} s for libraries, prepared in {:.2f} s\n",
                  opening.memory, opening.waited, opening.prepared);
  for (const auto& [name, took] : opening.by_operation) {
    if (took >= 0.01) text += fmt::format("  preparing {:<18} {:9.2f} s\n", name, took);
  }
  return text;
}

}  // namespace ballast
