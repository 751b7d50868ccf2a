#include "train/run/batch_feed.h"

#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"

namespace ballast::train {
namespace {

void copy(Runner& runner, Buffer from, Buffer to) {
  if (!from) return;
  const TensorView source = runner.view(from);
  std::memcpy(runner.view(to).data, source.data, source.bytes());
}

}  // namespace

data::SampleTarget sample_target(Runner& runner, const wan::DitSampleIo& io) {
  const auto floats = [&](Buffer b) -> std::span<float> {
    if (!b) return {};
    const TensorView v = runner.view(b);
    return {v.as<float>(), to_size(v.elements())};
  };
  return {.latent = floats(io.latent),
          .conditioning = floats(io.conditioning),
          .context = floats(io.context),
          .mask = floats(io.mask)};
}

void read_empty_caption(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                        std::span<float> to) {
  const auto samples = run.dataset->samples();
  for (std::uint32_t s = 0; s < samples.size(); ++s) {
    for (const auto& [step, kind] : run.kinds) {
      if (step.first != samples[s].bucket) continue;
      const int rank = dit.job().parallel.busiest(static_cast<std::int64_t>(step.second));
      const std::size_t pass = dit.passes(kind, rank).at(0).run;
      data::SampleTarget place = sample_target(runner, dit.io().runs[pass].samples[0]);
      place.context = to;
      return run.dataset->read(s, true, place);
    }
  }
  check(false, "no step has a sample");
}

std::vector<Timestep> draw_step_times(const PreparedRun& run, const data::StepBatch& batch,
                                      std::int64_t step, std::int64_t examples,
                                      const std::optional<ExpertSide>& side) {
  const data::LatentShape& z = run.dataset->buckets()[batch.bucket].shape;
  std::vector<Timestep> times;
  for (std::int64_t i = 0; i < std::ssize(batch.samples); ++i) {
    times.push_back(draw_timestep(run.config.timesteps,
                                  {.seed = run.config.seed,
                                   .step = step,
                                   .sample = i,
                                   .side = side,
                                   .samples_before = examples},
                                  z.height, z.width));
  }
  return times;
}

BatchFeed::BatchFeed(const PreparedRun& run, const wan::Dit& dit, Runner& runner, FeedPosition from)
    : run_(run), dit_(dit), runner_(runner), prefetcher_(*run.dataset) {
  if (from.step > run_.total_steps) return;  // nothing is left to do
  now_ = enter(from);
  request(now_, 0);
  if (now_.passes.empty()) look_ahead();
}

std::vector<std::string> BatchFeed::sample_ids() const {
  std::vector<std::string> ids;
  for (const std::uint32_t s : now_.batch.samples) ids.push_back(run_.dataset->samples()[s].id);
  return ids;
}

BatchFeed::Step BatchFeed::enter(FeedPosition at) {
  const auto load = [&] {
    if (epoch_number_ == at.epoch) return;
    epoch_ = run_.dataset->epoch(at.epoch, run_.config.seed);
    epoch_number_ = at.epoch;
  };
  load();
  if (at.batch == std::ssize(epoch_)) {
    ++at.epoch;
    at.batch = 0;
    load();
  }
  check(at.batch < std::ssize(epoch_), "epoch {} has {} steps, not {}", at.epoch, epoch_.size(),
        at.batch + 1);
  Step s = {.at = at, .batch = epoch_[to_size(at.batch)], .passes = {}};
  s.passes = dit_.passes(run_.kinds.at({s.batch.bucket, s.batch.samples.size()}));
  s.last_of_epoch = at.batch + 1 == std::ssize(epoch_);
  return s;
}

void BatchFeed::request(const Step& step, std::size_t part) {
  if (part >= step.passes.size()) return;
  const wan::StepPass& p = step.passes[part];
  const wan::DitPassIo& io = dit_.io().runs[p.run];
  requests_.clear();
  for (std::size_t i = 0; i < io.next.size(); ++i) {
    const auto index = to_size(p.first) + i;
    // The draw belongs to the sample's place in the step, like its noise.
    const RandomSource drop = random_source(run_.config.seed, "uncond", step.at.step, "caption");
    const bool empty =
        run_.config.uncond_fraction > 0 && uniform(drop.word(index)) < run_.config.uncond_fraction;
    requests_.push_back({.sample = step.batch.samples[index],
                         .use_empty_caption = empty,
                         .to = sample_target(runner_, io.next[i])});
  }
  prefetcher_.request(requests_);
}

void BatchFeed::write_inputs(std::size_t part) {
  prefetcher_.wait();
  const wan::DitPassIo& io = dit_.io().runs[now_.passes[part].run];
  for (std::size_t i = 0; i < io.samples.size(); ++i) {
    copy(runner_, io.next[i].latent, io.samples[i].latent);
    copy(runner_, io.next[i].conditioning, io.samples[i].conditioning);
    copy(runner_, io.next[i].context, io.samples[i].context);
    copy(runner_, io.next[i].mask, io.samples[i].mask);
  }
  if (part + 1 < now_.passes.size()) {
    request(now_, part + 1);
  } else {
    look_ahead();
  }
}

void BatchFeed::look_ahead() {
  if (now_.at.step >= run_.total_steps) return;
  ahead_ = enter({.step = now_.at.step + 1, .epoch = now_.at.epoch, .batch = now_.at.batch + 1});
  request(ahead_, 0);
}

void BatchFeed::next_step() {
  std::swap(now_, ahead_);
  if (now_.passes.empty()) look_ahead();
}

}  // namespace ballast::train
