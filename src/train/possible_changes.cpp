// What a user could write differently when a run does not fit (source notes 000 to 002 try most of
// these by hand).

#include <algorithm>

#include "train/prepared_run.h"

namespace ballast::train {
namespace {

using Edit = std::function<void(wan::FitRequest&)>;

// Latent frames to pictures: 4 (latent - 1) + 1.
std::int64_t pictures(std::int64_t latent_frames) { return 4 * (latent_frames - 1) + 1; }

Edit with_batches(std::vector<wan::Batch> batches) {
  return [batches = std::move(batches)](wan::FitRequest& r) { r.job.batches = batches; };
}

class Changes {
 public:
  explicit Changes(const PreparedRun& run)
      : run_(run), c_(run.config), job_(run.request.job), r_(run.request) {}

  std::vector<wan::Change> all(const Refusal& refusal) {
    all_ = wan::larger_budgets(refusal);
    policy();
    if (job_.mode == wan::Mode::full) {
      if (auto change = wan::state_on_disk(r_)) {
        all_.push_back(std::move(*change));
      }
      full();
    } else {
      lora();
    }
    samples();
    if (clips_follow_file()) clips();
    if (run_.previews) {
      for (wan::Change& c : run_.previews->changes(r_)) all_.push_back(std::move(c));
    }
    return std::move(all_);
  }

 private:
  bool toml() const { return c_.dialect == Dialect::diffusion_pipe; }
  void add(std::string text, Edit edit) { all_.push_back({std::move(text), std::move(edit)}); }

  void policy() {
    const std::int64_t layers = job_.config.layers;
    if (r_.policy) {
      add("--policy auto", [](wan::FitRequest& r) { r.policy.reset(); });
    }
    if (r_.streamed_blocks && *r_.streamed_blocks < layers) {
      add(fmt::format("--stream_blocks {}", layers),
          [layers](wan::FitRequest& r) { r.streamed_blocks = layers; });
    }
  }

  void full() {
    if (toml() && !c_.student) {
      add(fmt::format("[adapter] type = 'lora', rank = {}, dtype = 'bfloat16'", job_.lora.rank),
          [](wan::FitRequest& r) {
            r.job.mode = wan::Mode::lora;
            r.job.lora.dtype = DType::bf16;
          });
    }
    if (job_.optimizer.kind == OptimizerKind::adamw ||
        job_.optimizer.kind == OptimizerKind::adamw_optimi ||
        job_.optimizer.kind == OptimizerKind::stableadamw) {
      add(toml() ? "[optimizer] type = 'AdamW8bit'" : "--optimizer_type AdamW8bit",
          [](wan::FitRequest& r) { r.job.optimizer.kind = OptimizerKind::adamw8bit; });
    }
  }

  void lora() {
    if (!is_fp8(job_.format)) {
      add(toml() ? "[model] transformer_dtype = 'float8'" : "--fp8_base",
          [](wan::FitRequest& r) { r.job.format = WeightFormat::f8_e4m3; });
    }
    if (job_.lora.rank > 1) {
      const std::int64_t half = job_.lora.rank / 2;
      add((toml() ? "[adapter] rank = " : "--network_dim ") + std::to_string(half),
          [half](wan::FitRequest& r) { r.job.lora.rank = half; });
    }
  }

  void samples() {
    if (c_.gradient_accumulation > 1) {
      const std::int64_t half = c_.gradient_accumulation / 2;
      add((toml() ? "gradient_accumulation_steps = " : "--gradient_accumulation_steps ") +
              std::to_string(half),
          with_batches(batches_with(run_, {.accumulation = half})));
    }
    if (toml() && c_.micro_batch.plain > 1) {
      const std::int64_t half = c_.micro_batch.plain / 2;
      add(fmt::format("micro_batch_size_per_gpu = {}", half),
          with_batches(batches_with(run_, {.micro_batch = half})));
    }
  }

  // Whether sizes are keys of a dataset file, not facts of ready-made samples.
  bool clips_follow_file() const {
    if (!toml()) return false;
    const auto probe = batches_with(run_, {.frame_buckets = std::vector<std::int64_t>{1}});
    return probe != job_.batches;
  }

  void clips() {
    std::int64_t frames = 1, side = 0;
    for (const wan::Batch& b : job_.batches) {
      for (const wan::LatentSize& z : b.latents) {
        frames = std::max(frames, z.frames);
        side = std::max(side, std::min(z.height, z.width) * job_.config.spatial_stride);
      }
    }
    constexpr std::int64_t kFewestFrames = 2;  // in a bucket of one picture videos are left out
    const auto at_most = [&](std::int64_t latent_frames) {
      return with_batches(
          batches_with(run_, {.frame_buckets = std::vector{pictures(latent_frames)}}));
    };
    if (frames > kFewestFrames) {
      const std::int64_t fit =
          kFewestFrames +
          wan::largest_fitting(frames - 1 - kFewestFrames, r_, [&](std::int64_t more) -> Edit {
            return [=](wan::FitRequest& r) {
              for (wan::Batch& b : r.job.batches) {
                for (wan::LatentSize& z : b.latents) {
                  z.frames = std::min(z.frames, kFewestFrames + more);
                }
              }
            };
          });
      add(fmt::format("frame_buckets = [{}]", pictures(fit)), at_most(fit));
    }
    const std::int64_t multiple = 2 * job_.config.spatial_stride;
    const std::int64_t smaller = side * 3 / 4 / multiple * multiple;
    if (smaller >= 128) {
      add(fmt::format("resolutions = [{}]", smaller),
          with_batches(batches_with(run_, {.resolution = static_cast<double>(smaller)})));
    }
  }

  const PreparedRun& run_;
  const TrainConfig& c_;
  const wan::DitJob& job_;
  const wan::FitRequest& r_;
  std::vector<wan::Change> all_;
};

}  // namespace

std::vector<wan::Change> possible_changes(const PreparedRun& run, const Refusal& refusal) {
  return Changes(run).all(refusal);
}

}  // namespace ballast::train
