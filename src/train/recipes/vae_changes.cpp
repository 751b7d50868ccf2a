// What a user could write differently when the training of a VAE does not fit. Every text is one
// that its reader takes, and what is said of it was planned (tests/train/advice_test.cpp).

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "train/recipes/vae_run.h"

namespace ballast::train {
namespace {

wan_vae::TrainingJob& training_of(fit::Request& r) {
  return r.job.as<wan_vae::TrainingFitJob>().training;
}

// Of a dataset's file; a folder of cached clips has no such numbers.
void add_clip_changes(const PreparedVae& run, std::vector<fit::Change>& all) {
  const std::filesystem::path file(run.config.dataset.config);
  if (!is_file(file)) return;
  const std::int64_t side = run.network().pixels_per_latent();
  std::int64_t frames = 1, pixels = 0;
  for (const wan_vae::LatentClip& c : run.training().clips) {
    frames = std::max(frames, 4 * (c.frames - 1) + 1);
    pixels = std::max(pixels, std::min(c.height, c.width) * side);
  }
  const auto add = [&](const std::string& line, const DataChange& change) {
    std::vector<wan_vae::LatentClip> clips = clips_with(run, change);
    if (clips.empty() || clips == run.training().clips) return;
    all.push_back({fmt::format("{} in {}", line, printable(file.filename().string(), 100)),
                   [clips](fit::Request& r) { training_of(r).clips = clips; }});
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

}  // namespace

std::vector<fit::Change> possible_changes(const PreparedVae& run, const Refusal& refusal) {
  const fit::Request& request = run.request;
  // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
  const bool ram_bounds_all = request.backend.device == Device::cpu && !run.config.memory.gpu;
  std::vector<fit::Change> all = fit::larger_budgets(refusal, ram_bounds_all, request.budget);
  if (request.policy && !wan_vae::checkpoints(*request.policy)) {
    all.push_back({"--vae_gradient_checkpointing",
                   [](fit::Request& r) { r.policy = wan_vae::training_policy(true); }});
  }
  if (run.training().train_encoder && !run.config.vae->file.empty() && !run.config.resume) {
    all.push_back({"[model] train_encoder = false",
                   [](fit::Request& r) { training_of(r).train_encoder = false; }});
  }
  add_clip_changes(run, all);
  return all;
}

}  // namespace ballast::train
