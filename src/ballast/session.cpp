#include "ballast/session.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "ballast/settings.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "memory/process_memory.h"
#include "ops/linear/sgemm.h"
#include "plan/already_held.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/nan_guard.h"
#include "train/run/run_summary.h"
#include "train/run/trained_model.h"
#include "train/timesteps.h"

namespace ballast::library {
namespace {

std::string size_text(const wan::LatentSize& z) {
  return fmt::format("{} x {} x {}", z.frames, z.height, z.width);
}

}  // namespace

Session::Session(const train::PreparedRun& run, fit::PlannedRun planned, std::string settings)
    : run_(run), settings_(std::move(settings)) {
  wan::DitJob job = wan::job_of(run.request).dit;
  job.policy = planned.policy;
  own_ram_ = train::planned_memory(run.request, planned).ram - already_held();
  const Bytes device = planned.plan.peak_of(Tier::device), host = planned.plan.peak_of(Tier::host);
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  set_.backend = run.request.backend;
  dit_ = std::make_unique<wan::Dit>(set_, std::move(job), wan::job_of(run.request).experts);
  plan_ = plan_memory(set_);
  check(plan_.peak_of(Tier::device) == device && plan_.peak_of(Tier::host) == host,
        "planned {} and {}, recorded {} and {}", device, host, plan_.peak_of(Tier::device),
        plan_.peak_of(Tier::host));
  const bool gpu = set_.backend.device == Device::cuda;
  if (gpu) open_gpu();
  runner_ = std::make_unique<Runner>(set_, plan_);
  if (!gpu) ops::warm_up_blas(runner_->compute_threads());
  runner_->run("load");
  init_adapters(run, *dit_, *runner_);
  if (dit_->job().record_update) runner_->run("init_state");
  train::write_timestep_rows(*dit_, *runner_);
}

bool Session::same_as(const fit::PlannedRun& planned, const fit::Request& request) const {
  wan::DitJob job = wan::job_of(request).dit;
  const wan::DitJob& mine = dit_->job();
  return planned.policy == mine.policy && job.batches == mine.batches &&
         request.backend == set_.backend;
}

void Session::check_sample(const v1::ArraySample& s, std::size_t index) const {
  const wan::Config& c = run_.model();
  const auto count = [&](const char* what, const v1::Array& array, std::int64_t channels) {
    const std::int64_t expected = channels * latent_of(s.size).cells();
    if (array.values == to_size(expected)) return;
    fail(ErrorCode::input,
         fmt::format("sample {}: {} has {} values, a latent of {} with {} channels has {}", index,
                     what, array.values, size_text(latent_of(s.size)), channels, expected));
  };
  count("latent", s.latent, c.out_dim);
  count("conditioning", s.conditioning, c.conditioning());
  if (s.text.values % to_size(c.text_dim) != 0 ||
      s.text.values > to_size(c.text_len * c.text_dim)) {
    fail(ErrorCode::input,
         fmt::format("sample {}: text has {} values, expected up to {} rows of {}", index,
                     s.text.values, c.text_len, c.text_dim));
  }
  if (s.t && !(*s.t >= 0 && *s.t <= 1)) {
    fail(ErrorCode::input,
         fmt::format("sample {}: its noise fraction is {}, expected 0 to 1", index, *s.t));
  }
}

void Session::put(const wan::DitSampleIo& io, const v1::ArraySample& s) {
  const auto copy = [&](Buffer to, const v1::Array& array) {
    if (!to) return;
    const TensorView v = runner_->view(to);
    const std::size_t bytes = 4 * array.values;
    if (array.values > 0) {
      convert(array.data, dtype_of(array.type), v.data, DType::f32,
              static_cast<std::int64_t>(array.values));
    }
    std::memset(v.data + bytes, 0, v.bytes() - bytes);
  };
  copy(io.latent, s.latent);
  copy(io.conditioning, s.conditioning);
  copy(io.context, s.text);
}

v1::StepResult Session::step(std::span<const v1::ArraySample> samples, double learning_rate) {
  const Stopwatch begin;
  const wan::DitJob& job = dit_->job();
  if (job.mode == wan::Mode::infer) {
    fail(ErrorCode::usage, "step(): this model is set to Method::predict_only");
  }
  wan::Batch batch;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    check_sample(samples[i], i);
    batch.latents.push_back(latent_of(samples[i].size));
  }
  batch.timestep_rows = std::ssize(samples);
  const auto kind = std::ranges::find(job.batches, batch);
  if (kind == job.batches.end()) {
    fail(ErrorCode::input,
         fmt::format("step(): {} sample{}{}: none of the batches that were set", samples.size(),
                     samples.size() == 1 ? "" : "s",
                     samples.empty() ? "" : ", the first of " + size_text(batch.latents[0])),
         {{"set_batches()", "before the first step, with every kind of step there will be"}});
  }
  const train::TrainConfig& c = run_.config;
  const std::int64_t step = steps_ + 1;
  if (dit_->accumulates()) runner_->run("zero_gradients");
  for (const wan::StepPass& part : dit_->passes(to_size(kind - job.batches.begin()))) {
    const wan::DitPassIo& io = dit_->io().runs[part.run];
    for (std::size_t i = 0; i < io.samples.size(); ++i) {
      const std::int64_t index = part.first + static_cast<std::int64_t>(i);
      const v1::ArraySample& s = samples[to_size(index)];
      train::Timestep t;
      if (s.t) {
        t = {.t = *s.t, .model_time = 1000 * *s.t + c.timesteps.time_offset};
      } else {
        t = draw_timestep(
            c.timesteps,
            {.seed = c.seed, .step = step, .sample = index, .samples_before = examples_},
            s.size.height, s.size.width);
      }
      put(io.samples[i], s);
      runner_->view(io.timesteps).as<double>()[i] = t.model_time;
      *runner_->view(io.samples[i].noise_fraction).as<float>() = static_cast<float>(t.t);
      *runner_->view(io.samples[i].loss_weight).as<float>() =
          static_cast<float>(t.weight / static_cast<double>(samples.size()));
    }
    runner_->run(io.programs[0], {.step = step, .seed = c.seed, .first_sample = part.first});
  }
  v1::StepResult result = {.step = step};
  result.loss = *runner_->view(dit_->io().loss).as<double>();
  runner_->run("grad_norm");
  result.grad_norm = *runner_->view(dit_->io().grad_norm).as<float>();
  result.updated = !train::NanGuard::bad(result.loss, result.grad_norm);
  if (result.updated) {
    runner_->run("update", {.step = updates_ + 1, .seed = c.seed, .learning_rate = learning_rate});
    ++updates_;
  }
  steps_ = step;
  examples_ += std::ssize(samples);
  result.seconds = begin.seconds();
  return result;
}

void Session::predict(const v1::ArraySample& sample, double model_time,
                      const v1::MutableArray& out) {
  check_sample(sample, 0);
  if (out.values != sample.latent.values) {
    fail(ErrorCode::input, fmt::format("predict(): out has {} values, the latent {}", out.values,
                                       sample.latent.values));
  }
  const bool trains = dit_->job().mode != wan::Mode::infer;
  const auto& runs = trains ? dit_->io().predict_passes : dit_->io().runs;
  const wan::Batch one = {.latents = {latent_of(sample.size)}, .timestep_rows = 1};
  const auto run = std::ranges::find(runs, one, &wan::DitPassIo::batch);
  if (run == runs.end()) {
    fail(ErrorCode::input, fmt::format("predict(): no batch that was set has a latent of {}",
                                       size_text(one.latents[0])));
  }
  put(run->samples[0], sample);
  *runner_->view(run->timesteps).as<double>() = model_time;
  runner_->run(run->programs[0]);
  convert(runner_->view(run->samples[0].output).data, DType::f32, out.data, dtype_of(out.type),
          static_cast<std::int64_t>(out.values));
}

void Session::save(const std::string& path) {
  const std::filesystem::path p(path);
  const std::string folder = p.parent_path().string();
  save_model(run_, *dit_, *runner_,
             {.folder = folder.empty() ? "." : folder, .file_name = p.filename().string()}, steps_);
}

std::string Session::save_checkpoint(const std::string& folder, int keep) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) fail(ErrorCode::io, fmt::format("{}: {}", folder, failed.message()));
  train::TrainerState state;
  state.step = steps_;
  state.examples = examples_;
  state.seed = run_.config.seed;
  state.config_hash = settings_;
  state.model_hash = model_hash(run_);
  state.counts["expert_steps.0"] = updates_;
  const auto refuse = [&](const train::NonFinite& where) {
    fail(ErrorCode::input,
         fmt::format("after {} steps the trained tensor {} holds {} at element {}: it is not saved",
                     steps_, where.tensor, where.value, where.element),
         {{"load_checkpoint() of an earlier one, and a lower learning rate",
           "earlier checkpoints are untouched"}});
  };
  std::string path = train::save_checkpoint(
      folder, state, train::watched(train::saved_tensors(dit_->io().trained, *runner_), refuse));
  train::rotate_checkpoints(folder, std::max(1, keep));
  return path;
}

bool Session::load_checkpoint(const std::string& folder) {
  using Found = train::FoundCheckpoint;
  const auto find = [&](std::int64_t before, std::vector<std::string>* notes) {
    train::CheckpointSearch search =
        train::find_checkpoint(folder, {}, train::Verify::sizes, before);
    if (notes != nullptr) *notes = std::move(search.notes);
    if (!search.found) return search.found;
    const train::TrainerState& state = search.found->state;
    const auto same = [&](bool equal, const char* what) {
      if (equal) return;
      fail(ErrorCode::input, fmt::format("{} was saved with {}", search.found->folder, what));
    };
    same(state.model_hash == model_hash(run_), "another model");
    same(state.seed == run_.config.seed, "another seed");
    same(state.config_hash == settings_, "other training options");
    return search.found;
  };
  std::vector<std::string> notes;
  std::optional<Found> found = find(std::numeric_limits<std::int64_t>::max(), &notes);
  if (!found) {
    if (notes.empty()) return false;
    fail(ErrorCode::input, fmt::format("{}: no checkpoint is whole: {}", folder, notes.front()));
  }
  const auto load = [&](const Found& from) {
    train::load_checkpoint(from.folder, train::loaded_tensors(dit_->io().trained, *runner_, false));
  };
  const train::TrainerState state =
      train::load_or_older(std::move(*found), load, [&](std::int64_t before) {
        return find(before, nullptr);
      }).state;
  runner_->run("after_restore");
  steps_ = state.step;
  examples_ = state.examples;
  updates_ = state.counts.at("expert_steps.0");
  return true;
}

v1::MemoryUse Session::measured() const {
  v1::MemoryUse m;
  m.device = set_.backend.device == Device::cuda ? gpu_memory_of_process().count
                                                 : runner_->high_water(Tier::device).count;
  m.host = runner_->high_water(Tier::host).count;
  if (const auto process = process_memory()) m.ram = process->total().count;
  return m;
}

}  // namespace ballast::library
