// What a user could write differently when a run does not fit. A text is what its own dialect's
// reader takes, and its edit is what that reader then makes of the run: advice_test.cpp applies
// every one of them.

#include <algorithm>
#include <filesystem>

#include "train/config/enum_names.h"
#include "train/run/prepared_data.h"

namespace ballast::train {
namespace {

using Edit = std::function<void(fit::Request&)>;

// Latent frames to images: 4 (latent - 1) + 1.
std::int64_t pixel_frames(std::int64_t latent_frames) { return 4 * (latent_frames - 1) + 1; }

Edit with_data(const PreparedRun& run, const DataChange& change) {
  return [data = data_with(run, change)](fit::Request& r) {
    wan::job_of(r).dit.batches = data.batches;
    replace_line(r.other_lines, data.index);
  };
}

// As the reader has it when another optimizer is named: what was set by hand stays.
OptimizerOptions with_kind(OptimizerOptions o, OptimizerKind kind, DType before, DType after) {
  const OptimizerOptions usual = optimizer_defaults(o.kind, before);
  const OptimizerOptions next = optimizer_defaults(kind, after);
  const bool of_optimi = is_optimi(o.kind) && o.kahan_unasked && !is_optimi(kind);
  o.kind = kind;
  if (o.state_dtype == usual.state_dtype) o.state_dtype = next.state_dtype;
  if (o.rounding == usual.rounding || of_optimi) o.rounding = next.rounding;
  return o;
}

class Changes {
 public:
  explicit Changes(const PreparedRun& run)
      : run_(run), c_(run.config), job_(wan::job_of(run.request).dit), r_(run.request) {}

  std::vector<fit::Change> all(const Refusal& refusal) {
    all_ = fit::larger_budgets(refusal, ram_bounds_all(), r_.budget);
    policy();
    if (auto change = fit::state_on_disk(r_)) all_.push_back(std::move(*change));
    if (job_.mode == wan::Mode::full) {
      if (!c_.resume) full();  // a checkpoint continues with what it trains, and its optimizer
    } else {
      lora();
    }
    samples();
    if (clips_follow_file()) clips();
    if (run_.previews) {
      for (fit::Change& c : run_.previews->changes(r_)) all_.push_back(std::move(c));
    }
    return std::move(all_);
  }

 private:
  bool toml() const { return c_.dialect == Dialect::diffusion_pipe; }
  bool ram_bounds_all() const { return r_.backend.device == Device::cpu && !c_.memory.gpu; }
  void add(std::string text, Edit edit) { all_.push_back({std::move(text), std::move(edit)}); }

  void policy() {
    const std::int64_t layers = job_.config.layers;
    if (r_.policy) {
      add("--policy auto", [](fit::Request& r) { r.policy.reset(); });
    }
    if (r_.streamed_blocks && *r_.streamed_blocks < layers) {
      add(fmt::format("--stream_blocks {}", layers),
          [layers](fit::Request& r) { r.streamed_blocks = layers; });
    }
  }

  void full() {
    const DType trained = trained_dtype(c_);
    const OptimizerKind kind = job_.optimizer.kind;
    if (toml() && !c_.student) {
      const DType frozen = c_.model.transformer_dtype.value_or(c_.model.dtype);
      add(fmt::format("[adapter] type = 'lora', rank = {}, dtype = 'bfloat16'", job_.lora.rank),
          [=](fit::Request& r) {
            wan::job_of(r).dit.mode = wan::Mode::lora;
            wan::job_of(r).dit.format =
                frozen == DType::f32 ? WeightFormat::f32 : WeightFormat::bf16;
            wan::job_of(r).dit.lora.dtype = DType::bf16;
            wan::job_of(r).dit.optimizer =
                with_kind(wan::job_of(r).dit.optimizer, kind, trained, DType::bf16);
          });
    }
    if (kind == OptimizerKind::adamw || kind == OptimizerKind::adamw_optimi ||
        kind == OptimizerKind::stableadamw) {
      add(c_.dialect == Dialect::flow_matching ? "--use_8bit_adam"
                                               : "[optimizer] type = 'AdamW8bit'",
          [=](fit::Request& r) {
            wan::job_of(r).dit.optimizer =
                with_kind(wan::job_of(r).dit.optimizer, OptimizerKind::adamw8bit, trained, trained);
          });
    }
  }

  void lora() {
    if (!is_fp8(job_.format)) {
      add(toml() ? "[model] transformer_dtype = 'float8'" : "--fp8_base",
          [](fit::Request& r) { wan::job_of(r).dit.format = WeightFormat::f8_e4m3; });
    }
    // A LoRA or a checkpoint that the run begins with decides the rank.
    if (job_.lora.rank > 1 && c_.adapter.init_from.empty() && !c_.resume) {
      const std::int64_t half = job_.lora.rank / 2;
      add((toml() ? "[adapter] rank = " : "--network_dim ") + std::to_string(half),
          [half](fit::Request& r) { wan::job_of(r).dit.lora.rank = half; });
    }
  }

  void samples() {
    if (c_.gradient_accumulation > 1 && !c_.parallel.global_batch) {
      const std::int64_t half = c_.gradient_accumulation / 2;
      add((toml() ? "gradient_accumulation_steps = " : "--gradient_accumulation_steps ") +
              std::to_string(half),
          with_data(run_, {.accumulation = half}));
    }
    // musubi-tuner's batches are keys of the dataset's file.
    if (c_.dialect != Dialect::musubi && c_.micro_batch.plain > 1) {
      const std::int64_t half = c_.micro_batch.plain / 2;
      add((toml() ? "micro_batch_size_per_gpu = " : "--batch_size ") + std::to_string(half),
          with_data(run_, {.micro_batch = half}));
    }
  }

  // Whether sizes are keys of a dataset file, not facts of ready-made samples.
  bool clips_follow_file() const {
    if (!toml()) return false;
    const DataChange images = {.frame_buckets = std::vector<std::int64_t>{1}};
    return data_with(run_, images).batches != job_.batches;
  }

  // "frame_buckets = [5] in dataset.toml"
  std::string in_dataset(std::string line) const {
    const std::filesystem::path file(c_.dataset.config);
    return fmt::format("{} in {}", line, printable(file.filename().string(), 100));
  }

  void clips() {
    std::int64_t frames = 1, side = 0;
    for (const wan::Batch& b : job_.batches) {
      for (const wan::LatentSize& z : b.latents) {
        frames = std::max(frames, z.frames);
        side = std::max(side, std::min(z.height, z.width) * job_.config.spatial_stride);
      }
    }
    constexpr std::int64_t kMinFrames = 2;  // in a bucket of one image videos are left out
    const auto at_most = [&](std::int64_t latent_frames) {
      return with_data(run_, {.frame_buckets = std::vector{pixel_frames(latent_frames)}});
    };
    if (frames > kMinFrames) {
      const std::int64_t fit =
          kMinFrames +
          fit::largest_fitting(frames - 1 - kMinFrames, r_, [&](std::int64_t more) -> Edit {
            return [=](fit::Request& r) {
              for (wan::Batch& b : wan::job_of(r).dit.batches) {
                for (wan::LatentSize& z : b.latents) {
                  z.frames = std::min(z.frames, kMinFrames + more);
                }
              }
            };
          });
      add(in_dataset(fmt::format("frame_buckets = [{}]", pixel_frames(fit))), at_most(fit));
    }
    const std::int64_t multiple = 2 * job_.config.spatial_stride;
    const std::int64_t smaller = side * 3 / 4 / multiple * multiple;
    if (smaller >= 128) {
      add(in_dataset(fmt::format("resolutions = [{}]", smaller)),
          with_data(run_, {.resolution = static_cast<double>(smaller)}));
    }
  }

  const PreparedRun& run_;
  const TrainConfig& c_;
  const wan::DitJob& job_;
  const fit::Request& r_;
  std::vector<fit::Change> all_;
};

}  // namespace

std::vector<fit::Change> possible_changes(const PreparedRun& run, const Refusal& refusal) {
  return Changes(run).all(refusal);
}

}  // namespace ballast::train
