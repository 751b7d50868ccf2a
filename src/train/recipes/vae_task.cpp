#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/convert.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "data/prefetcher.h"
#include "train/recipes/vae_run.h"
#include "train/run/run_summary.h"
#include "train/training_loop.h"

namespace ballast::train {
namespace {

// Clips that the statistics of latents are measured on, from all over the dataset.
constexpr std::size_t kMeasuredClips = 64;

data::SampleTarget place_of(const TensorView& pixels) {
  data::SampleTarget to;
  to.latent = {pixels.as<float>(), to_size(pixels.elements())};
  return to;
}

// Brings the clips of one step after the other into the inputs; the next one is read meanwhile.
class ClipFeed {
 public:
  ClipFeed(const PreparedVae& run, const wan_vae::TrainingIo& io, Runner& runner,
           const FeedPosition& from)
      : run_(run), io_(io), runner_(runner), at_(from), prefetcher_(*run.dataset) {
    if (at_.step > run_.total_steps) return;  // nothing is left to do
    enter(at_);
    request(step(), 0);
  }

  const data::StepBatch& step() const { return epoch_[to_size(at_.batch)]; }
  std::int64_t epoch() const { return at_.epoch; }
  bool last_of_epoch() const { return at_.batch + 1 == std::ssize(epoch_); }

  // Puts clip i of the step into its input, in order.
  const wan_vae::ClipIo& write_inputs(std::size_t i) {
    prefetcher_.wait();
    const wan_vae::ClipIo& io = clip(step());
    const TensorView from = runner_.view(io.next);
    std::memcpy(runner_.view(io.pixels).data, from.data, from.bytes());
    if (i + 1 < step().samples.size()) {
      request(step(), i + 1);
    } else if (at_.step < run_.total_steps && !last_of_epoch()) {
      request(epoch_[to_size(at_.batch) + 1], 0);
    } else if (at_.step < run_.total_steps) {
      ahead_ = run_.dataset->epoch(at_.epoch + 1, run_.config.seed);
      request(ahead_.front(), 0);
    }
    return io;
  }

  void next_step() {
    ++at_.step;
    if (!last_of_epoch()) {
      ++at_.batch;
      return;
    }
    ++at_.epoch;
    at_.batch = 0;
    if (!ahead_.empty()) epoch_ = std::exchange(ahead_, {});
  }

 private:
  void enter(FeedPosition& at) {
    epoch_ = run_.dataset->epoch(at.epoch, run_.config.seed);
    if (at.batch < std::ssize(epoch_)) return;
    ++at.epoch;
    at.batch = 0;
    epoch_ = run_.dataset->epoch(at.epoch, run_.config.seed);
    check(!epoch_.empty(), "epoch {} has no step", at.epoch);
  }

  const wan_vae::ClipIo& clip(const data::StepBatch& step) const {
    return io_.clips[run_.kinds[step.bucket]];
  }

  void request(const data::StepBatch& step, std::size_t i) {
    const TensorView to = runner_.view(clip(step).next);
    const data::SampleRequest one = {.sample = step.samples[i], .to = place_of(to)};
    prefetcher_.request({&one, 1});
  }

  const PreparedVae& run_;
  const wan_vae::TrainingIo& io_;
  Runner& runner_;
  FeedPosition at_;
  std::vector<data::StepBatch> epoch_, ahead_;  // ahead: the next one, once it is read from
  data::Prefetcher prefetcher_;
};

// A tensor in the order of files, [N, C, taps], from rows of taps; row by row.
ByteSource file_order(Runner& runner, const wan_vae::TrainedTensor& t, DType dtype) {
  const Buffer from = value_to_save(t.updated);
  return [&runner, from, shape = t.shape, taps = std::max<std::int64_t>(1, t.taps),
          dtype](const ByteSink& sink) {
    const std::int64_t outputs = shape[0], values = shape.elements() / outputs;
    const std::int64_t channels = values / taps;
    const auto row = to_size(runner.view(from).elements() / outputs);
    std::vector<float> read(row), ordered(to_size(values));
    std::vector<std::byte> stored(ordered.size() * size_of(dtype));
    for (std::int64_t n = 0; n < outputs; ++n) {
      runner.read_part(from, static_cast<std::uint64_t>(n) * row * sizeof(float),
                       std::as_writable_bytes(std::span(read)));
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t i = 0; i < taps; ++i) {
          ordered[to_size(c * taps + i)] = read[to_size(i * channels + c)];
        }
      }
      convert(ordered.data(), DType::f32, stored.data(), dtype, values);
      sink(stored);
    }
  };
}

std::string list_text(std::span<const double> values) {
  std::string text = "[";
  for (const double v : values) {
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", static_cast<float>(v));
  }
  return text + "]";
}

class VaeTask final : public TrainingTask {
 public:
  VaeTask(PreparedVae run, bool checkpointing) : run_(std::move(run)) {
    run_.training().checkpointing = checkpointing;
  }

  void record(ProgramSet& set) override {
    auto& job = run_.request.job.as<wan_vae::TrainingFitJob>();
    training_.emplace(set, job.training, std::move(job.encoder), std::move(job.decoder));
  }
  void load(Runner& runner) override {
    runner.run("load");
    runner.run("init_state");
  }
  void start(Runner& runner, const FeedPosition& from) override {
    feed_.emplace(run_, io(), runner, from);
  }

  std::int64_t epoch() const override { return feed_->epoch(); }
  bool last_of_epoch() const override { return feed_->last_of_epoch(); }
  std::vector<std::string> sample_ids() const override {
    std::vector<std::string> ids;
    for (const std::uint32_t s : feed_->step().samples) {
      ids.push_back(run_.dataset->samples()[s].id);
    }
    return ids;
  }

  void gradients(Runner& runner, std::int64_t, StepRecord& record) override {
    const std::size_t clips = feed_->step().samples.size();
    step_.run(runner, "zero_gradients");
    for (std::size_t i = 0; i < clips; ++i) {
      const Stopwatch waits;
      const wan_vae::ClipIo& clip = feed_->write_inputs(i);
      record.times.data += waits.seconds();
      *runner.view(clip.weight).as<float>() = 1.0f / static_cast<float>(clips);
      step_.run(runner, clip.program,
                {.step = record.step,
                 .seed = run_.config.seed,
                 .first_sample = static_cast<std::int64_t>(i)});
      add_lane_times(record.times, runner.lane_times());
    }
    const auto* losses = runner.view(io().losses).as<double>();
    reconstruction_ = losses[0];
    kl_ = losses[1];
    record.loss = reconstruction_ + run_.training().kl_weight * kl_;
    step_.run(runner, "grad_norm");
    record.grad_norm = *runner.view(io().grad_norm).as<float>();
  }

  void update(Runner& runner, StepRecord& record) override {
    step_.run(runner, "update",
              {.step = ++updates_, .seed = run_.config.seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner.lane_times());
  }
  void next_step() override { feed_->next_step(); }
  std::vector<UpdatedTensor> trained() const override {
    std::vector<UpdatedTensor> all;
    for (const wan_vae::TrainedTensor& t : io().trained) all.push_back(t.updated);
    return all;
  }
  Buffer grad_norm() const override { return io().grad_norm; }
  std::vector<Scalar> scalars() const override {
    return {{"train/reconstruction", static_cast<float>(reconstruction_)},
            {"train/kl", static_cast<float>(kl_)}};
  }

  void put_state(TrainerState& state) const override { state.counts[kUpdates] = updates_; }
  void take_state(const TrainerState& state, bool values_only) override {
    updates_ = values_only ? 0 : state.count(kUpdates);
  }

  std::string file_name() const override { return "model.safetensors"; }
  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override {
    Metadata metadata = {{"format", "pt"}};
    if (run_.config.write_metadata) {
      metadata["ballast.model"] = run_.network().name;
      metadata["ballast.step"] = std::to_string(step);
      metadata["ballast.seed"] = std::to_string(run_.config.seed);
      metadata["ballast.config_hash"] = run_.config_hash;
    }
    put_statistics(runner, metadata);
    SafetensorsWriter writer({.metadata = std::move(metadata)});
    for (const wan_vae::TrainedTensor& t : io().trained) {
      writer.add(t.updated.name, run_.config.save_dtype, t.shape,
                 file_order(runner, t, run_.config.save_dtype));
    }
    if (!run_.training().train_encoder) add_encoder(writer);
    const std::string path = target.folder + "/" + target.file_name;
    writer.write(path);
    return {path};
  }

 private:
  static constexpr const char* kUpdates = "updates";

  const wan_vae::TrainingIo& io() const { return training_->io(); }

  // A fine-tuned VAE keeps the numbers of the one it was, which transformers were trained with. One
  // from nothing has none: they are measured on the clips.
  void put_statistics(Runner& runner, Metadata& metadata);
  // As it is in the file it came from.
  void add_encoder(SafetensorsWriter& writer) const;

  PreparedVae run_;
  std::optional<wan_vae::Training> training_;
  std::optional<ClipFeed> feed_;
  std::int64_t updates_ = 0;            // that the optimizer has made
  double reconstruction_ = 0, kl_ = 0;  // of the last step
};

void VaeTask::put_statistics(Runner& runner, Metadata& metadata) {
  const wan_vae::Config& c = run_.network();
  const auto channels = to_size(c.z_dim);
  std::vector<double> mean(channels), std(channels);
  if (!run_.config.vae->file.empty() && !c.latent_mean.empty()) {
    std::ranges::copy(c.latent_mean, mean.begin());
    std::ranges::copy(c.latent_std, std.begin());
  } else if (!run_.config.vae->file.empty() && !latent_statistics(c).mean.empty()) {
    return;  // those of the released model
  } else {
    std::vector<double> squares(channels);
    double count = 0;
    const auto samples = run_.dataset->samples();
    const std::size_t stride = (samples.size() + kMeasuredClips - 1) / kMeasuredClips;
    for (std::size_t s = 0; s < samples.size(); s += stride) {
      const wan_vae::ClipIo& clip = io().clips[run_.kinds[samples[s].bucket]];
      const TensorView pixels = runner.view(clip.pixels);
      run_.dataset->read(static_cast<std::uint32_t>(s), false, place_of(pixels));
      runner.run(clip.measure);
      const TensorView means = runner.view(clip.means);  // [f, h, w, z]
      for (std::int64_t i = 0; i < means.elements(); ++i) {
        const double x = means.as<float>()[i];
        const auto z = to_size(i) % channels;
        mean[z] += x;
        squares[z] += x * x;
      }
      count += static_cast<double>(means.elements()) / static_cast<double>(channels);
    }
    for (std::size_t z = 0; z < channels; ++z) {
      mean[z] /= count;
      // A channel that says nothing is not blown up.
      std[z] = std::sqrt(std::max(squares[z] / count - mean[z] * mean[z], 1e-8));
    }
  }
  metadata[wan_vae::kLatentMeanKey] = list_text(mean);
  metadata[wan_vae::kLatentStdKey] = list_text(std);
}

void VaeTask::add_encoder(SafetensorsWriter& writer) const {
  const WeightFiles& file = run_.checkpoints[0];
  const bool official = wan_vae::recognise(file)->dialect == wan_vae::Dialect::official;
  for (const wan_vae::Stage& stage : wan_vae::encoder(run_.network())) {
    for (const wan_vae::Unit& unit : stage.units) {
      for (const wan_vae::UnitTensor& t : tensors_of(unit)) {
        const WeightTensor& from = file.get(official ? t.name : t.other);
        writer.add(t.name, file.dtype(from), t.shape, [&file, &from](const ByteSink& sink) {
          std::vector<std::byte> bytes(file.extent(from).bytes);
          file.read(from, bytes);
          sink(bytes);
        });
      }
    }
  }
}

}  // namespace

TrainOutcome train(PreparedVae run, fit::PlannedRun planned, const TrainOptions& options) {
  const bool checkpointing = wan_vae::checkpoints(planned.policy);
  RunSetup setup = run_setup(run, planned, options.command);
  return train(std::move(setup), std::make_unique<VaeTask>(std::move(run), checkpointing), options);
}

}  // namespace ballast::train
