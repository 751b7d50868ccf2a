#include "train/run/evaluation.h"

#include "core/random.h"
#include "core/to_size.h"
#include "train/run/batch_feed.h"

namespace ballast::train {

EvalLosses evaluate_set(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                        const EvalSet& set, const std::function<void(int)>& use_expert) {
  EvalLosses losses;
  const auto samples = set.dataset->samples();
  // Quantiles outside, so that experts change once.
  for (std::size_t q = 0; q < kEvalQuantiles.size(); ++q) {
    for (std::uint32_t s = 0; s < samples.size(); ++s) {
      const wan::DitPassIo& io = dit.io().eval_passes[set.first_run + samples[s].bucket];
      const wan::DitSampleIo& in = io.samples[0];
      const wan::LatentSize& z = io.batch.latents[0];
      const Timestep t =
          timestep_at_quantile(run.config.timesteps, kEvalQuantiles[q], z.height, z.width);
      const int expert = dit.experts() > 1 && t.model_time / 1000 >= run.boundary ? 1 : 0;
      use_expert(expert);
      set.dataset->read(s, false, sample_target(runner, in));
      *runner.view(io.timesteps).as<double>() = t.model_time;
      *runner.view(in.noise_fraction).as<float>() = static_cast<float>(t.t);
      *runner.view(in.loss_weight).as<float>() = 1;
      runner.run(io.programs[to_size(expert)], {.step = static_cast<std::int64_t>(q),
                                                .seed = hash_of("evaluation"),
                                                .first_sample = static_cast<std::int64_t>(s)});
      losses.by_quantile[q] +=
          *runner.view(dit.io().loss).as<double>() / static_cast<double>(samples.size());
    }
    losses.mean += losses.by_quantile[q] / static_cast<double>(kEvalQuantiles.size());
  }
  return losses;
}

}  // namespace ballast::train
