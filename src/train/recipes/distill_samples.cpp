#include "train/recipes/distill_samples.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "infer/student_sampler.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/media_reader.h"

namespace ballast::train {
namespace {

// Decoded by the CPU: the GPU's memory belongs to teacher and student.
infer::VideoCodecOptions decoder_options(const DistillRun& run) {
  return {.device = Device::cpu, .threads = run.request.backend.threads};
}

}  // namespace

std::vector<std::string> sample_prompts(const DistillRun& run) {
  if (!run.config.sample_prompts.empty()) return run.config.sample_prompts;
  std::vector<std::string> prompts;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(2, run.prompts->count()); ++i) {
    prompts.push_back(run.prompts->at(i));
  }
  return prompts;
}

bool decodes_samples(const DistillRun& run) {
  return run.config.save_samples && media_available() && !run.files.vae.empty();
}

ProcessLine decoder_line(const DistillRun& run) {
  const std::int64_t grid = run.student.grid();
  const infer::VideoDecoder decoder(run.files.vae, decoder_options(run));
  infer::require_latents_of(run.student, decoder.config(), run.files.vae, "");
  const fit::PlannedRun planned = decoder.plan(grid, grid, false);
  const auto pixels =
      static_cast<std::uint64_t>(infer::chunk_values(decoder.config(), grid, grid, false));
  // A chunk's values, the image's bytes and those of its file.
  return {.name = "decoder of samples",
          .bytes = planned.needed_ram() + Bytes{pixels * (sizeof(float) + 2)},
          .reason = "the VAE, while a sample is decoded by the processors"};
}

void check_can_draw(const DistillRun& run) {
  create_folders(run.config.sample_dir);
  check_can_write(run.config.sample_dir + "/sample.png");
}

std::vector<std::string> draw_samples(const DistillRun& run, const student::Student& student,
                                      Runner& runner, const TextStates& states,
                                      std::int64_t epoch) {
  const DistillConfig& c = run.config;
  create_folders(c.sample_dir);
  infer::StudentSampler sampler(student, runner);
  const std::int64_t width = run.student.text_dim;
  std::vector<float> rows(to_size(run.pair().teacher.text_len * width));
  std::vector<float> text(to_size(width));
  std::vector<std::string> paths;
  const std::vector<std::string> prompts = sample_prompts(run);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::int64_t tokens = states.read(prompts[i], rows);
    infer::mean_rows(std::span(rows).first(to_size(tokens * width)), tokens, text);
    const std::vector<float> latent =
        sampler.run(text, c.sample_steps, c.seed, static_cast<std::int64_t>(i));
    paths.push_back(infer::save_student_sample(
        latent, run.student, decodes_samples(run) ? run.files.vae : "", decoder_options(run),
        fmt::format("{}/epoch_{:04}_rank_0_sample_{:02}.png", c.sample_dir, epoch, i)));
  }
  return paths;
}

}  // namespace ballast::train
