#include "app/commands/sample_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "app/commands/prompt_lines.h"
#include "app/commands/sample_files.h"
#include "app/commands/sample_loras.h"
#include "app/machine_flags.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/hub_cache.h"
#include "models/wan/published.h"
#include "models/wan/recognise.h"

namespace ballast {
namespace {

std::string tokenizer_path(const std::string& named) {
  return resolve_model_path(named, HubUse::tokenizer).path;
}

// What the model's folder holds, and what options name besides.
infer::ModelFiles files_of(const SampleOptions& o) {
  infer::ModelFiles files;
  if (o.flow_matching_cli()) {
    files.transformer = infer::model_path(o.checkpoint);
  } else if (o.model.empty()) {
    fail(ErrorCode::usage, "there is no model to sample from",
         {{"--model FOLDER", "a folder with the model's parts, or a transformer's file"}});
  } else {
    const std::string model = infer::model_path(o.model);
    if (!std::filesystem::exists(model)) {
      if (const auto known = wan::find_published(model)) fail_not_downloaded(o.model, known->id);
    }
    files = infer::find_model_files(model);
  }
  const auto put = [](const std::string& given, std::string& to) {
    if (!given.empty()) to = infer::model_path(given);
  };
  put(o.high_noise, files.high_noise);
  put(o.vae, files.vae);
  put(o.text_encoder, files.text_encoder);
  if (!o.tokenizer.empty()) files.tokenizer = tokenizer_path(o.tokenizer);
  if (files.tokenizer.empty()) files.tokenizer = infer::stored_tokenizer(files.text_encoder);
  return files;
}

wan::Config open_experts(const SampleOptions& o, SampleRun& run) {
  std::optional<wan::Config> model;
  std::vector<std::string> paths = {run.files.transformer};
  if (!run.files.high_noise.empty()) paths.push_back(run.files.high_noise);
  for (const std::string& path : paths) {
    const WeightFiles& file = run.checkpoints.emplace_back(WeightFiles::open(path));
    const wan::Config config = recognised_config(file, wan::TensorMap(file), path);
    if (model && (model->dim != config.dim || model->in_dim != config.in_dim ||
                  model->layers != config.layers)) {
      fail(ErrorCode::input, "{} and {} are no experts of one model: {} and {}",
           run.checkpoints[0].path(), path, model->name, config.name);
    }
    model = config;
  }
  if (run.checkpoints.size() == 1 && expert_named(run.checkpoints[0].path()) >= 0) {
    log::warn(
        "{} is one of two experts by its name, and the other was not found: it makes all steps",
        run.checkpoints[0].path());
  }
  if (o.layers && *o.layers != model->layers) {
    fail(ErrorCode::usage, "--num-layers {}: {} has {}", *o.layers, run.checkpoints[0].path(),
         model->layers);
  }
  return *model;
}

infer::SamplerOptions sampler_of(const SampleOptions& o, const infer::GenerationDefaults& d) {
  infer::SamplerOptions s;
  if (!o.distilled && !o.distilled_timesteps.empty()) {
    fail(ErrorCode::usage, "--distilled-timesteps goes with --distilled");
  }
  if (o.distilled && !o.distilled_timesteps.empty()) {
    if (o.steps) fail(ErrorCode::usage, "--steps and --distilled-timesteps: one of them");
    s = infer::distilled_steps(o.distilled_timesteps);
  } else if (o.distilled) {
    s = infer::distilled_steps(o.steps.value_or(4));
  } else if (o.flow_matching_cli()) {
    s = {.solver = infer::Solver::euler,
         .schedule = infer::SigmaSchedule::linear,
         .steps = 30,
         .sigma_start = o.sigma_start,
         .sigma_end = o.sigma_end,
         .time_scale = o.sigma_multiplier};
  } else {
    s.steps = d.steps;
    s.shift = d.shift;
  }
  if (!o.sampler.empty()) {
    const auto solver = infer::find_solver(o.sampler);
    if (!solver) fail_unknown("--sampler", o.sampler, {"unipc", "dpmpp", "euler"});
    s.solver = *solver;
  }
  if (!o.schedule.empty()) {
    const auto schedule = infer::find_schedule(o.schedule);
    if (!schedule || *schedule == infer::SigmaSchedule::listed) {
      fail_unknown("--schedule", o.schedule, {"official", "diffusers", "simple", "linear"});
    }
    s.schedule = *schedule;
  }
  if (o.steps && !o.distilled) s.steps = *o.steps;
  if (o.shift) s.shift = *o.shift;
  return s;
}

WeightFormat format_of(const SampleOptions& o) {
  if (o.dtype.empty()) return o.machine.weights;
  return o.dtype == "fp16"   ? WeightFormat::f16
         : o.dtype == "fp32" ? WeightFormat::f32
                             : WeightFormat::bf16;
}

void take_machine(const SampleOptions& o, fit::Request& r) {
  const train::RunTarget target = find_target(o.target, o.machine);
  if (o.target != "this" && !o.plan_only) {
    fail(ErrorCode::usage, "--target plans for another machine: it goes with --plan");
  }
  r.profile = target.profile;
  r.backend = target.backend;
  r.budget = train::resolve_budget(target, o.machine);
  wan::job_of(r).dit.precision = precision_on(r.backend.device);
  wan::job_of(r).dit.format = format_of(o);
  if (o.fp8_matmul) use_fp8_products(wan::job_of(r).dit, r.backend);
  if (o.offload_to_cpu) r.switches.offloading = fit::Choice::on;
  r.policy = find_policy(o.machine.policy);
}

// How large the clip is: as the image's latent, as asked for, else as the model likes it.
void take_size(const SampleOptions& o, const wan::Config& model, const infer::GenerationDefaults& d,
               SampleRun& run) {
  wan::LatentSize& z = run.job.latent;
  if (o.flow_matching_cli()) {  // it counts frames of the latent, and latent cells where they are
                                // given
    z = latent_size(model, 1, o.height.value_or(512), o.width.value_or(512));
    z.frames = o.frames.value_or(1);
    z.height = o.latent_height.value_or(z.height);
    z.width = o.latent_width.value_or(z.width);
  } else {
    z = latent_size(model, o.frames.value_or(d.frames), o.height.value_or(d.height),
                    o.width.value_or(d.width));
  }
  if (!(o.image.empty() && o.image_latent.empty()) && !infer::takes_first_frame(model)) {
    fail(ErrorCode::usage, fmt::format("{} makes clips of text alone, not of an image", model.name),
         {{"--model FOLDER", "of an I2V or a TI2V model"}});
  }
  if (!o.image.empty()) {
    if (!o.image_latent.empty()) fail(ErrorCode::usage, "--image and --image-latent: one of them");
    run.input_image.emplace(read_image(o.image));
    const PixelSize size =
        clip_size(*run.input_image, model, o.height.value_or(d.height) * o.width.value_or(d.width));
    z.height = size.height / model.spatial_stride;
    z.width = size.width / model.spatial_stride;
  } else if (!o.image_latent.empty()) {
    StoredLatent image = read_latent(o.image_latent, model.out_dim);
    const bool whole = model.conditioning() > 0;  // the clip's, or its first frame's
    if (!o.width && !o.height) z.height = image.size.height, z.width = image.size.width;
    if (whole && !o.frames) z.frames = image.size.frames;
    const wan::LatentSize expected = {whole ? z.frames : 1, z.height, z.width};
    if (image.size != expected) {
      fail(ErrorCode::input, "{}: its latent is {} x {} x {}, the clip needs {} x {} x {}",
           o.image_latent, image.size.frames, image.size.height, image.size.width, expected.frames,
           expected.height, expected.width);
    }
    if (whole) {
      run.conditioning = infer::image_conditioning(z, image.values);
    } else {
      run.first_frame = std::move(image.values);
    }
  } else if (model.conditioning() > 0) {
    fail(ErrorCode::usage, fmt::format("{} makes a clip of an image", model.name),
         {{"--image FILE", "the image that it begins with"},
          {"--image-latent FILE", "or the latent of the clip that begins with it"}});
  }
  run.job.first_frame = !run.first_frame.empty() || (run.input_image && model.conditioning() == 0);
  run.pixel_frames = 4 * (z.frames - 1) + 1;
  run.height = z.height * model.spatial_stride;
  run.width = z.width * model.spatial_stride;
  run.fps = o.fps > 0 ? o.fps : d.fps;
}

constexpr std::size_t kMaxSamplePrompts = 10'000;

void require_part(const std::string& path, const char* what, const char* flag,
                  const SampleOptions& o, const std::vector<std::string>& choices = {}) {
  if (!path.empty()) return;
  infer::require_one(choices, what, flag);
  fail(ErrorCode::usage,
       fmt::format("{} holds no {}", o.flow_matching_cli() ? o.checkpoint : o.model, what),
       {{flag, fmt::format("where the {} is", what)}});
}

// Prompts as text, which are encoded first, or as text states from files.
void take_prompts(const SampleOptions& o, const wan::Config& model, SampleRun& run) {
  const bool as_text = !o.prompt.empty() || !o.prompt_file.empty();
  if (as_text && (!o.cond.empty() || !o.uncond.empty())) {
    fail(ErrorCode::usage, "--prompt and --cond: one of them");
  }
  if (as_text) {
    if (!o.prompt_file.empty()) run.texts = read_prompts(o.prompt_file, kMaxSamplePrompts);
    if (!o.prompt.empty()) run.texts.insert(run.texts.begin(), o.prompt);
    run.texts.push_back(o.negative_prompt.empty() ? infer::kNegativePrompt : o.negative_prompt);
    require_part(run.files.text_encoder, "text encoder", "--text-encoder FILE", o,
                 run.files.text_encoder_choices);
    require_part(run.files.tokenizer, "tokenizer", "--tokenizer FILE", o);
    return;
  }
  if (!o.cond.empty()) run.prompts.push_back(read_text_states(o.cond, model));
  if (!o.uncond.empty()) run.negative = read_text_states(o.uncond, model);
  if (o.plan_only || (!o.cond.empty() && (!o.uncond.empty() || !guided(run.job)))) return;
  if (o.cond.empty()) {
    fail(ErrorCode::usage, "there is no prompt",
         {{"--prompt TEXT", "what the clip shows"},
          {"--cond FILE", "or its text states: safetensors with embeddings"}});
  }
  fail(ErrorCode::usage, "there are no text states of the negative prompt",
       {{"--uncond FILE", "safetensors with embeddings"}});
}

// A clip where a VAE is at hand, else its latent.
void take_output(const SampleOptions& o, SampleRun& run) {
  run.output = o.output;
  if (run.output.empty()) {
    const bool images = !run.files.vae.empty() && !o.flow_matching_cli() && media_available();
    run.output = images ? "sample.mp4" : "sample.latent.safetensors";
  }
  if (!o.plan_only) {
    check_can_write(numbered_path(run.output, 1, clips_of(o, run)));
    if (!o.sheet.empty()) check_can_write(numbered_path(o.sheet, 1, clips_of(o, run)));
  }
  if (!wants_images(o, run) && !run.input_image) return;
  require_part(run.files.vae, "VAE", "--vae FILE", o, run.files.vae_choices);
  const MediaOptions size = {.width = run.width, .height = run.height};
  if (names_images(run.output)) check_can_write_media(run.output, size);
  if (!o.sheet.empty()) check_can_write_media(o.sheet, size);
}

}  // namespace

ProcessLine inputs_line(const SampleOptions& o, const SampleRun& run,
                        std::optional<wan::LatentSize> size) {
  const wan::Config& model = wan::job_of(run.job.request).dit.config;
  std::size_t numbers = run.negative.size();
  for (const auto& p : run.prompts) numbers += p.size();
  numbers += run.texts.size() * to_size(model.text_len * model.text_dim);
  const wan::LatentSize z = size.value_or(run.job.latent);
  const auto frame = to_size(z.height * z.width);
  numbers += frame * to_size(z.frames * model.conditioning());
  if (run.job.first_frame) numbers += frame * to_size(model.out_dim);
  numbers += frame * to_size(clips_of(o, run) * z.frames * model.out_dim);
  return {"text, image and clips",
          {numbers * sizeof(float)},
          "text states, latent of the image, latents of the clips"};
}

std::vector<ProcessLine> media_lines(const SampleOptions& o, const SampleRun& run, MediaUse use,
                                     std::optional<wan::LatentSize> size) {
  if (!wants_images(o, run) && !run.input_image) return {};
  const wan::LatentSize z = size.value_or(run.job.latent);
  const std::int64_t side = wan::job_of(run.job.request).dit.config.spatial_stride;
  const std::int64_t width = z.width * side, height = z.height * side;
  MediaWriting clip = {};
  if (names_images(run.output)) {
    clip = media_writing(run.output, width, height, 4 * (z.frames - 1) + 1);
  }
  if (run.input_image || !o.sheet.empty()) clip.libraries = kMediaLibraries;
  std::vector<ProcessLine> lines;
  if (clip.libraries > Bytes{}) {
    lines.push_back({"media libraries", clip.libraries, "FFmpeg's, from their first use on"});
  }
  if (use == MediaUse::before_loop && run.input_image) {
    lines.push_back({"image", {run.input_image->image.pixels.size()}, "that the clip begins with"});
  }
  if (use != MediaUse::writing) return lines;
  // Eight of them in two rows, once more as the sheet.
  const auto sheet = static_cast<std::uint64_t>(o.sheet.empty() ? 0 : 2 * 8 * 3);
  const auto frame = static_cast<std::uint64_t>(width * height);
  lines.push_back({"images on their way to a file", clip.encoder + Bytes{frame * (3 + sheet)},
                   "the encoder, a frame, the contact sheet"});
  return lines;
}

bool wants_images(const SampleOptions& o, const SampleRun& run) {
  return names_images(run.output) || !o.sheet.empty();
}

bool guided(const infer::VideoJob& job) { return job.guidance != std::array{1., 1.}; }

void declare(SampleOptions& o, CLI::App& app) {
  app.add_option("--model", o.model,
                 "a published, diffusers' or ComfyUI folder, a transformer's or one-file "
                 "checkpoint, or the id of a model in the Hugging Face cache");
  app.add_option("--high-noise", o.high_noise, "the high-noise expert, where it stands elsewhere");
  app.add_option("--prompt", o.prompt, "what the clip shows");
  app.add_option("--prompt-file", o.prompt_file,
                 "a prompt per line, a clip for each (-: standard input)");
  app.add_option("--negative-prompt", o.negative_prompt, "instead of the publishers' own");
  app.add_option("--image", o.image, "the image that the clip begins with (I2V, TI2V)");
  app.add_option("--vae,--vae-checkpoint", o.vae, "the VAE, where the model's folder has none");
  app.add_option("--text-encoder", o.text_encoder, "the same for the text encoder");
  app.add_option("--tokenizer", o.tokenizer, "the same for tokenizer.json or spiece.model");
  app.add_option("--cond", o.cond, "text states of the prompt: a safetensors file (embeddings)");
  app.add_option("--uncond", o.uncond, "the same of the negative prompt");
  app.add_option("--image-latent", o.image_latent,
                 "normalised latent of the image: of its clip (I2V) or of one frame (TI2V)");
  app.add_option("--output,--output-latent", o.output,
                 "clip.mp4, .gif, .webp, .png (a sequence), or .safetensors for the latent");
  app.add_option("--contact-sheet,--preview", o.sheet, "also eight of its frames in one PNG");
  app.add_option("--fps", o.fps, "of the clip; the model's own without")
      ->check(CLI::Range(1., 240.));
  app.add_option("--crf", o.crf, "H.264 quality, 0 (lossless) to 51")
      ->check(CLI::Range(0, 51))
      ->capture_default_str();
  app.add_option("--vae-dtype", o.vae_dtype, "f32 or bf16; without, f32 on the CPU, bf16 on a GPU")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--width", o.width, "pixels");
  app.add_option("--height", o.height, "pixels");
  app.add_option("--frames", o.frames, "frames of the clip, 4n + 1");
  app.add_option("--count,--batch-size", o.count, "clips, each with noise of its own")
      ->check(CLI::Range(1, 10000));
  app.add_option("--steps", o.steps, "denoising steps");
  app.add_option("--sampler", o.sampler, "unipc, dpmpp or euler");
  app.add_option("--schedule", o.schedule, "official, diffusers, simple (ComfyUI) or linear");
  app.add_option("--shift", o.shift, "of the schedule towards noise");
  app.add_option("--guidance,--cfg-scale", o.guidance,
                 "one number, or those of the low-noise and the high-noise expert: 3,4")
      ->delimiter(',')
      ->expected(1, 2);
  app.add_option("--boundary", o.boundary, "between the experts, in (0, 1]");
  app.add_flag("--distilled", o.distilled,
               "Euler steps without guidance, half of them by each expert: for LoRAs of few steps; "
               "four, or --steps, evenly spaced");
  app.add_option("--distilled-timesteps", o.distilled_timesteps,
                 "with --distilled: its base timesteps, for example 1000,757,522")
      ->delimiter(',')
      ->check(CLI::Range(0., 1000.));
  app.add_option("--seed", o.seed, "of the noise")->capture_default_str();
  app.add_option("--lora", o.loras,
                 "FILE[:STRENGTH], several times; high or low in a name says for which expert");
  app.add_option("--merge-loras", o.merge_folder,
                 "merge them into copies of the model in this folder instead of applying them");
  app.add_flag("--fp8-matmul", o.fp8_matmul, "matrix products of blocks in fp8");
  declare_machine(app, o.machine,
                  {"device", "non_deterministic", "verify_weights", "threads", "gpu", "ram", "disk",
                   "ignore_limits", "policy", "weights", "json"});
  app.add_option("--target", o.target, "with --plan: a machine to plan for: " + bundled_names())
      ->capture_default_str();
  app.add_flag("--plan", o.plan_only, "print the plan and do nothing");
  app.add_flag("--details", o.details, "the plan with memory and predicted time by phase");
  const std::string note = "as test_inference.py has it";
  app.add_option("--checkpoint", o.checkpoint, "the transformer, " + note);
  app.add_option("--latent-width", o.latent_width, note);
  app.add_option("--latent-height", o.latent_height, note);
  app.add_option("--sigma-start", o.sigma_start, note);
  app.add_option("--sigma-end", o.sigma_end, note);
  app.add_option("--sigma-multiplier", o.sigma_multiplier, note);
  app.add_option("--sigma-shift", o.sigma_shift, note + ": without effect");
  app.add_option("--num-layers", o.layers, note + ": must be the model's");
  app.add_option("--dtype", o.dtype, note + ": bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  app.add_flag("--offload-to-cpu", o.offload_to_cpu, "weights wait in RAM");
  app.footer(
      "With --checkpoint, sizes and defaults are those of test_inference.py: --frames counts "
      "latent frames (1), --width and --height are 512, 30 steps, --cfg-scale 4.");
}

std::int64_t clips_of(const SampleOptions& o, const SampleRun& run) {
  return o.count * (run.texts.empty() ? 1 : std::ssize(run.texts) - 1);
}

SampleRun open_sample(const SampleOptions& o) {
  SampleRun run;
  infer::VideoJob& job = run.job;
  run.files = files_of(o);
  const wan::Config model = open_experts(o, run);
  const int experts = static_cast<int>(run.checkpoints.size());
  const infer::GenerationDefaults d = infer::generation_defaults(model, experts);
  take_machine(o, job.request);
  wan::job_of(job.request).dit.config = model;
  job.sampler = sampler_of(o, d);
  job.boundary = o.boundary.value_or(d.boundary);
  job.guidance = {d.low_guidance, d.high_guidance};
  if (o.flow_matching_cli()) job.guidance = {4, 4};
  if (o.distilled) job.guidance = {1, 1};
  if (o.distilled && !o.boundary) job.high_noise_steps = (job.sampler.steps + 1) / 2;
  if (!o.guidance.empty()) job.guidance = {o.guidance.front(), o.guidance.back()};
  take_size(o, model, d, run);
  take_prompts(o, model, run);
  take_output(o, run);
  take_loras(o, model, run);
  take_weights(run);
  job.request.other_lines.push_back(inputs_line(o, run));
  std::ranges::move(media_lines(o, run, MediaUse::loop),
                    std::back_inserter(job.request.other_lines));
  return run;
}

void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const infer::ClipFile& file,
                 const std::function<void()>& on_frames) {
  const std::int64_t frames = 4 * (size.frames - 1) + 1;
  infer::ClipWriter writer(file, frames);
  Progress progress("decoding", frames);
  decoder.decode(latent, size.frames, size.height, size.width, [&](const infer::DecodedFrames& f) {
    writer.add(f);
    progress.add(f.count);
    on_frames();
  });
  writer.finish();
}

bool names_images(const std::string& path) { return !path.ends_with(".safetensors"); }

}  // namespace ballast
