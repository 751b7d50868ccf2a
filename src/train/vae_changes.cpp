// What a user could write differently when the training of a VAE does not fit. Every text is one
// that its reader takes, and what is said of it was planned (tests/train/advice_test.cpp).

#include <algorithm>
#include <filesystem>
#include <functional>
#include <tuple>

#include "core/error.h"
#include "plan/budget_flag.h"
#include "train/vae_run.h"

namespace ballast::train {
namespace {

struct VaeChange {
  std::string text;
  std::function<void(wan_vae::TrainingRequest&)> apply;
};

Bytes less_by(Bytes before, Bytes after) { return before > after ? before - after : Bytes{}; }

// All that is short: alone none of it may be enough.
VaeChange larger_budgets(const PreparedVae& run, const Refusal& refusal) {
  // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
  const bool ram_bounds_all = run.request.backend.device == Device::cpu && !run.config.memory.gpu;
  VaeChange change;
  Budget budget = run.request.budget;
  for (const Shortage& s : refusal.shortages) {
    if (s.tier == Tier::device && ram_bounds_all) continue;
    const std::uint64_t megabytes = megabytes_for(s.needed);
    (s.tier == Tier::device ? budget.gpu : budget.host) = Bytes{megabytes * kMegabyte};
    change.text +=
        (change.text.empty() ? "" : " ") + larger_budget(run.request.budget, s.tier, megabytes);
  }
  if (ram_bounds_all) budget.gpu = budget.host;
  change.apply = [budget](wan_vae::TrainingRequest& r) { r.budget = budget; };
  return change;
}

// Of a dataset's file; a folder of cached clips has no such numbers.
void add_clip_changes(const PreparedVae& run, std::vector<VaeChange>& all) {
  const std::filesystem::path file(run.config.dataset.config);
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(file, unknown)) return;
  const std::int64_t side = run.network().pixels_per_latent();
  std::int64_t frames = 1, pixels = 0;
  for (const wan_vae::LatentClip& c : run.request.job.clips) {
    frames = std::max(frames, 4 * (c.frames - 1) + 1);
    pixels = std::max(pixels, std::min(c.height, c.width) * side);
  }
  const auto add = [&](const std::string& line, const DataChange& change) {
    std::vector<wan_vae::LatentClip> clips = clips_with(run, change);
    if (clips.empty() || clips == run.request.job.clips) return;
    all.push_back({fmt::format("{} in {}", line, printable(file.filename().string(), 100)),
                   [clips](wan_vae::TrainingRequest& r) { r.job.clips = clips; }});
  };
  const std::int64_t fewer = (frames / 2 - 1) / 4 * 4 + 1;
  if (fewer >= 5) {
    add(fmt::format("frame_buckets = [{}]", fewer), {.frame_buckets = std::vector{fewer}});
  }
  const std::int64_t smaller = pixels * 3 / 4 / side * side;
  if (smaller >= side) {
    add(fmt::format("resolutions = [{}]", smaller), {.resolution = static_cast<double>(smaller)});
  }
}

PlannedChange planned_change(const PreparedVae& run, const Refusal& refusal,
                             const VaeChange& change) {
  wan_vae::TrainingRequest r = run.request;
  change.apply(r);
  const auto outcome = fit_training(r);
  PlannedChange p;
  p.text = change.text;
  if (const auto* fits = std::get_if<wan_vae::PlannedTraining>(&outcome)) {
    p.fits = true;
    p.needed = {fits->device, fits->host, Bytes{}};
    p.step_seconds = fits->step_seconds;
    if (!fits->clip_seconds.empty()) p.step_seconds += fits->clip_seconds.front();
  } else {
    const auto& still = std::get<Refusal>(outcome);
    p.needed = still.needed;
    p.step_seconds = still.seconds_per_step;
    for (const Shortage& s : still.shortages) p.missing += s.needed - s.allowed;
  }
  p.frees_device = less_by(refusal.needed[0], p.needed[0]);
  p.frees_host = less_by(refusal.needed[1], p.needed[1]);
  if (refusal.seconds_per_step > 0) p.step_factor = p.step_seconds / refusal.seconds_per_step;
  return p;
}

}  // namespace

std::vector<PlannedChange> possible_changes(const PreparedVae& run, const Refusal& refusal) {
  std::vector<VaeChange> changes = {larger_budgets(run, refusal)};
  if (run.request.checkpointing == false) {
    changes.push_back({"--vae_gradient_checkpointing",
                       [](wan_vae::TrainingRequest& r) { r.checkpointing = true; }});
  }
  if (run.request.job.train_encoder && !run.config.vae->file.empty() && !run.config.resume) {
    changes.push_back({"[model] train_encoder = false",
                       [](wan_vae::TrainingRequest& r) { r.job.train_encoder = false; }});
  }
  add_clip_changes(run, changes);
  std::vector<PlannedChange> all;
  for (const VaeChange& c : changes) all.push_back(planned_change(run, refusal, c));
  std::ranges::stable_sort(all, [](const PlannedChange& a, const PlannedChange& b) {
    return std::tuple(!a.fits, a.missing, a.step_seconds) <
           std::tuple(!b.fits, b.missing, b.step_seconds);
  });
  return all;
}

}  // namespace ballast::train
