#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/sample_files.h"
#include "app/commands/sample_loras.h"
#include "app/commands/sample_options.h"
#include "app/commands/sample_student.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/training_output.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "report/memory_monitor.h"
#include "train/run/prompt_part.h"
#include "train/run/run_summary.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// ballast sample: clips from prompts. Phases follow one another and each gives its memory back:
// text to states, image to latent, denoising, latent to images. All are planned before the first.
class Sample : public Command {
 public:
  void declare(CLI::App& app) override {
    ballast::declare(options_, app);
    app.footer(app.get_footer() + StudentSample::help());
  }
  bool takes(const std::vector<std::string>& arguments) override {
    return by_student_ = student_.takes(arguments);
  }
  void run() override;

 private:
  void open_parts();
  std::vector<infer::CommandPart> parts() const;
  bool images_are_long(const wan::LatentSize& z) const;
  void add_stages(std::span<const fit::PlannedRun> plans);
  void add_stage(const char* name, const std::string& how, Bytes device, Bytes host);
  void show(const fit::PlannedRun& planned);
  PlanTitle title() const;
  std::string loop_text(const fit::PlannedRun& planned) const;
  void resize(fit::Request& part, const wan::LatentSize& to) const;
  std::vector<fit::Change> changes(std::span<const fit::Request> refused) const;
  void encode_texts();
  void encode_image();
  void denoise_all(fit::PlannedRun planned, const fit::Request& request);
  std::vector<float> denoise(infer::VideoSampler& sampler, std::size_t prompt, std::int64_t clip);
  void write(const std::vector<float>& latent, std::size_t prompt, std::int64_t clip);
  std::int64_t clips() const { return clips_of(options_, run_); }
  Metadata metadata(std::size_t prompt, std::int64_t clip) const;
  void report(const fit::Request& request) const;

  SampleOptions options_;
  StudentSample student_;
  bool by_student_ = false;  // then that is all
  SampleRun run_;
  std::optional<train::PromptPart> texts_;
  std::unique_ptr<infer::VideoEncoder> image_;
  std::unique_ptr<infer::VideoDecoder> decoder_;
  std::vector<infer::PlannedStep> steps_;
  std::vector<PlanStage> stages_;                    // before and after denoising
  std::vector<std::vector<float>> latents_;          // by prompt, by clip
  std::optional<MemoryMonitor> monitor_, decoding_;  // of denoising; of clips to files
  Json result_ = Json::object();
};

const RegisterCommand<Sample> kSample("sample", "clips from prompts and images, by a Wan model");

std::function<Bytes()> gpu_memory(const fit::Request& request) {
  if (request.backend.device == Device::cuda) return gpu_memory_of_process;
  return {};
}

PlanTitle Sample::title() const {
  const fit::Request& r = run_.job.request;
  const wan::LatentSize& z = run_.job.latent;
  return {.model = wan::job_of(r).dit.config.name,
          .mode = "sample",
          .shape = fmt::format("{} frames of {} x {}, {} tokens{}{}", run_.pixel_frames, run_.width,
                               run_.height, z.tokens(),
                               wan::job_of(r).experts.size() > 1 ? ", two experts" : "",
                               run_.job.loras.empty() ? "" : ", LoRAs applied"),
          .weights = weights_text(wan::job_of(r).dit),
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu,
          .ram_of_this_machine = borrows_ram(r.profile, options_.machine.ram.has_value())};
}

std::string Sample::loop_text(const fit::PlannedRun& planned) const {
  std::int64_t high = 0, evaluations = 0;
  for (const infer::PlannedStep& s : steps_) {
    high += s.expert;
    evaluations += s.guidance == 1 ? 1 : 2;
  }
  std::string text = fmt::format("{} steps of {}", steps_.size(), name_of(run_.job.sampler.solver));
  if (wan::job_of(run_.job.request).experts.size() > 1) {
    text += fmt::format(" ({} high noise, {} low noise)", high, std::ssize(steps_) - high);
  }
  const auto seconds = std::chrono::seconds(static_cast<std::int64_t>(
      infer::predicted_seconds(run_.job, planned) * static_cast<double>(clips()) + 0.5));
  return text + fmt::format(", {} evaluations, {} predicted", evaluations, to_string(seconds));
}

// A part as it is for clips of another size.
void Sample::resize(fit::Request& part, const wan::LatentSize& to) const {
  if (part.job.get_if<wan::FitJob>()) {
    infer::VideoJob job = run_.job;
    job.latent = to;
    replace_line(job.request.other_lines, inputs_line(options_, run_, to));
    const fit::Request smaller = fit_request(job);  // the sampler keeps less, too
    wan::job_of(part).dit.batches = wan::job_of(smaller).dit.batches;
    part.other_lines = smaller.other_lines;
  } else if (const auto* codec = part.job.get_if<wan_vae::FitJob>()) {
    const bool decodes = codec->vae.decode;
    infer::resize_part(part, to.height, to.width, decodes ? to.frames > 1 : images_are_long(to));
    replace_line(part.other_lines, inputs_line(options_, run_, to));
    if (!decodes) return;
    for (const ProcessLine& line : media_lines(options_, run_, MediaUse::writing, to)) {
      replace_line(part.other_lines, line);
    }
  }
}

// What could be typed differently where these parts do not fit.
std::vector<fit::Change> Sample::changes(std::span<const fit::Request> refused) const {
  std::vector<fit::Change> all;
  const wan::LatentSize z = run_.job.latent;
  const auto resized = [this](wan::LatentSize to) {
    return [this, to](fit::Request& r) { resize(r, to); };
  };
  std::vector<fit::Request> sized;  // that depend on the clip's size
  const fit::Request* transformer = nullptr;
  for (const fit::Request& r : refused) {
    if (r.job.get_if<wan::FitJob>()) transformer = &r;
    if (!r.job.get_if<t5::EncoderFitJob>()) sized.push_back(r);
  }
  if (!sized.empty() && options_.image_latent.empty() && !run_.input_image) {
    const std::int64_t frames = 1 + fit::largest_fitting(z.frames - 1, sized, [&](std::int64_t k) {
                                  return resized({k + 1, z.height, z.width});
                                });
    if (frames < z.frames) {
      all.push_back(
          {fmt::format("--frames {}", options_.flow_matching_cli() ? frames : 4 * (frames - 1) + 1),
           resized({frames, z.height, z.width})});
    }
    const auto smaller = [](std::int64_t cells) {
      return std::max<std::int64_t>(2, cells * 3 / 8 * 2);
    };
    const wan::LatentSize small = {z.frames, smaller(z.height), smaller(z.width)};
    const std::int64_t stride = wan::job_of(run_.job.request).dit.config.spatial_stride;
    if (small != z) {
      all.push_back(
          {fmt::format("--height {} --width {}", small.height * stride, small.width * stride),
           resized(small)});
    }
  }
  if (!transformer) return all;
  if (!is_fp8(wan::job_of(*transformer).dit.format)) {
    all.push_back({"--weights fp8", [](fit::Request& r) {
                     if (auto* job = r.job.get_if<wan::FitJob>()) {
                       job->dit.format = WeightFormat::f8_e4m3;
                     }
                   }});
  }
  if (transformer->policy) {
    all.push_back({"--policy auto", [](fit::Request& r) { r.policy.reset(); }});
  }
  return all;
}

void Sample::open_parts() {
  const fit::Request& fit = run_.job.request;
  const infer::VideoCodecOptions codec = {
      .device = fit.backend.device,
      .dtype = options_.vae_dtype == "bf16" ||
                       (options_.vae_dtype.empty() && fit.backend.device == Device::cuda)
                   ? DType::bf16
                   : DType::f32,
      .budget = fit.budget,
      .threads = options_.machine.threads};
  if (!run_.texts.empty()) {
    texts_.emplace(run_.files.text_encoder, run_.files.tokenizer, run_.texts,
                   wan::job_of(fit).dit.config,
                   infer::TextEncoderOptions{
                       .device = fit.backend.device,
                       .budget = fit.budget,
                       .threads = options_.machine.threads,
                       .profile = fit.profile,
                       .other_lines = media_lines(options_, run_, MediaUse::before_loop)});
  }
  const auto beside = [&](MediaUse use) {
    infer::VideoCodecOptions all = codec;
    all.other_lines = media_lines(options_, run_, use);
    all.other_lines.push_back(inputs_line(options_, run_));
    return all;
  };
  if (run_.input_image) {
    image_ = std::make_unique<infer::VideoEncoder>(run_.files.vae, beside(MediaUse::before_loop));
  }
  if (wants_images(options_, run_)) {
    decoder_ = std::make_unique<infer::VideoDecoder>(run_.files.vae, beside(MediaUse::writing));
  }
  const infer::VideoCodec* vae =
      image_ ? static_cast<infer::VideoCodec*>(image_.get()) : decoder_.get();
  if (vae) infer::require_latents_of(wan::job_of(fit).dit.config, vae->config(), run_.files.vae);
}

void Sample::add_stage(const char* name, const std::string& how, Bytes device, Bytes host) {
  stages_.push_back({.name = name, .how = how, .device = device, .host = host});
  if (!options_.machine.json) return;
  result_["phases"].push_back({{"name", name},
                               {"policy", how},
                               {"device_bytes", device.count},
                               {"host_bytes", host.count}});
}

bool Sample::images_are_long(const wan::LatentSize& z) const {
  return wan::job_of(run_.job.request).dit.config.conditioning() > 0 && z.frames > 1;
}

// Denoising first, then those around it.
std::vector<infer::CommandPart> Sample::parts() const {
  std::vector<infer::CommandPart> all = {{fit_request(run_.job), title()}};
  const wan::LatentSize& z = run_.job.latent;
  if (texts_) all.push_back(texts_->part());
  if (image_) all.push_back(image_->part(z.height, z.width, images_are_long(z)));
  if (decoder_) all.push_back(decoder_->part(z.height, z.width, z.frames > 1));
  return all;
}

// By the plans of the parts around denoising.
void Sample::add_stages(std::span<const fit::PlannedRun> plans) {
  auto next = plans.begin();
  if (texts_) {
    const fit::PlannedRun& p = *next++;
    add_stage("text", fmt::format("{} prompts, {}", texts_->texts(), p.policy.name),
              p.needed(Tier::device), p.needed(Tier::host));
  }
  const auto codec = [&](const char* name) {
    const fit::PlannedRun& p = *next++;
    const Bytes device = p.needed(Tier::device);
    add_stage(name, wan_vae::policy_text(p), device, p.needed_ram());
    // On the CPU what is needed of the RAM holds both.
    if (run_.job.request.backend.device == Device::cpu) stages_.back().host = p.needed(Tier::host);
    return MemoryNumbers{.device = device, .host = {}, .disk = {}, .ram = p.needed_ram()};
  };
  if (image_) codec("image");
  if (decoder_) decoding_.emplace(codec("decoding"), gpu_memory(run_.job.request));
}

void Sample::show(const fit::PlannedRun& planned) {
  PlanView view = train::view_of(fit_request(run_.job), planned);
  if (options_.machine.json) {
    result_["plan"] = Json::parse(plan_json(title(), view));
    result_["predicted_seconds"] = infer::predicted_seconds(run_.job, planned);
    return;
  }
  view.stages = stages_;
  view.facts.push_back({"denoising", loop_text(planned)});
  print_plan(title(), view, {.json = false, .details = options_.details});
}

void Sample::encode_texts() {
  if (!texts_) return;
  Progress progress("encoding prompts", 1);
  run_.prompts = texts_->run();
  progress.add();
  run_.negative = std::move(run_.prompts.back());
  run_.prompts.pop_back();
  texts_.reset();
}

void Sample::encode_image() {
  if (!image_) return;
  const wan::Config& model = wan::job_of(run_.job.request).dit.config;
  std::vector<float> latent = encode_first_frame(*image_, *run_.input_image, model,
                                                 {run_.width, run_.height}, run_.pixel_frames);
  if (model.conditioning() > 0) {
    run_.conditioning = infer::image_conditioning(run_.job.latent, latent);
  } else {
    run_.first_frame = std::move(latent);
  }
  image_.reset();
  run_.input_image.reset();
}

void Sample::denoise_all(fit::PlannedRun planned, const fit::Request& request) {
  monitor_.emplace(train::planned_memory(request, planned), gpu_memory(request));
  infer::VideoSampler sampler(run_.job, std::move(planned));
  for (std::size_t p = 0; p < run_.prompts.size(); ++p) {
    for (std::int64_t clip = 0; clip < options_.count; ++clip) {
      latents_.push_back(denoise(sampler, p, clip));
    }
  }
}

std::vector<float> Sample::denoise(infer::VideoSampler& sampler, std::size_t prompt,
                                   std::int64_t clip) {
  Progress progress(clips() == 1
                        ? std::string("denoising")
                        : fmt::format("denoising clip {} of {}", latents_.size() + 1, clips()),
                    std::ssize(steps_));
  return sampler.run({.prompt = run_.prompts[prompt],
                      .negative = run_.negative,
                      .conditioning = run_.conditioning,
                      .first_frame = run_.first_frame,
                      .seed = options_.seed,
                      .clip = clip},
                     [&](const infer::StepReport& s) {
                       progress.add();
                       monitor_->sample({.device = sampler.high_water(Tier::device),
                                         .host = sampler.high_water(Tier::host),
                                         .disk = {},
                                         .ram = {}},
                                        s.step == 1 ? Counting::exact : Counting::quick);
                     });
}

Metadata Sample::metadata(std::size_t prompt, std::int64_t clip) const {
  const infer::VideoJob& j = run_.job;
  Metadata m;
  m["ballast.model"] = wan::job_of(j.request).dit.config.name;
  if (!run_.texts.empty()) {
    m["ballast.prompt"] = run_.texts[prompt];
    m["ballast.negative_prompt"] = run_.texts.back();
  }
  m["ballast.seed"] = std::to_string(options_.seed);
  m["ballast.clip"] = std::to_string(clip);
  m["ballast.steps"] = std::to_string(steps_.size());
  m["ballast.sampler"] = name_of(j.sampler.solver);
  m["ballast.schedule"] = name_of(j.sampler.schedule);
  m["ballast.shift"] = fmt::format("{:g}", j.sampler.shift);
  m["ballast.guidance"] = fmt::format("{:g},{:g}", j.guidance[0], j.guidance[1]);
  m["ballast.frames"] = std::to_string(run_.pixel_frames);
  m["ballast.fps"] = fmt::format("{:g}", run_.fps);
  for (std::size_t i = 0; i < options_.loras.size(); ++i) {
    m[fmt::format("ballast.lora.{}", i)] = options_.loras[i];
  }
  return m;
}

void Sample::write(const std::vector<float>& latent, std::size_t prompt, std::int64_t clip) {
  const std::int64_t number = static_cast<std::int64_t>(prompt) * options_.count + clip + 1;
  const std::string path = numbered_path(run_.output, number, clips());
  const Metadata about = metadata(prompt, clip);
  const bool as_latent = !names_images(path);
  if (as_latent) {
    write_latent(path, latent, wan::job_of(run_.job.request).dit.config.out_dim, run_.job.latent,
                 about);
  }
  if (decoder_) {
    const std::string sheet =
        options_.sheet.empty() ? "" : numbered_path(options_.sheet, number, clips());
    decode_clip(*decoder_, latent, run_.job.latent,
                {.path = as_latent ? "" : path,
                 .fps = run_.fps,
                 .crf = options_.crf,
                 .comment = Json(about).dump(-1, ' ', false, Json::error_handler_t::replace),
                 .sheet = sheet},
                [&] {
                  decoding_->sample({.device = decoder_->runner()->high_water(Tier::device),
                                     .host = {},
                                     .disk = {},
                                     .ram = {}},
                                    Counting::exact);
                });
    if (!sheet.empty()) result_["contact_sheets"].push_back(sheet);
  }
  result_["outputs"].push_back(path);
  if (!options_.machine.json) print(fmt::format("{}\n", path));
}

// Planned against measured.
void Sample::report(const fit::Request& request) const {
  const auto line = [&](const char* name, Bytes planned, Bytes measured) {
    return fmt::format("memory: {:<8} planned {}, measured {}\n", name, planned, measured);
  };
  const MemoryNumbers &p = monitor_->planned(), &m = monitor_->most();
  const bool gpu = request.backend.device == Device::cuda;
  print(line(gpu ? "GPU" : "compute", p.device, m.device));
  if (gpu) print(line("pinned", p.host, m.host));
  print(line("RAM", p.ram, m.ram));
  if (decoding_) print(line("decoding", decoding_->planned().ram, decoding_->most().ram));
}

void Sample::run() {
  if (by_student_) return student_.run();
  const Stopwatch begin;
  run_ = open_sample(options_);
  steps_ = planned_steps(run_.job);
  open_parts();
  merge_loras(options_, run_);
  std::vector<fit::PlannedRun> plans = require_plans(
      parts(), [this](std::span<const fit::Request> refused) { return changes(refused); },
      {.json = options_.machine.json});
  fit::PlannedRun planned = std::move(plans.front());
  if (options_.machine.json) show(planned);
  add_stages(std::span(plans).subspan(1));
  if (!options_.machine.json) show(planned);
  plans.clear();
  const fit::Request request = fit_request(run_.job);
  if (!options_.plan_only) {
    encode_texts();
    encode_image();
    denoise_all(std::move(planned), request);
    for (std::size_t i = 0; i < latents_.size(); ++i) {
      const auto count = to_size(options_.count);
      write(latents_[i], i / count, static_cast<std::int64_t>(i % count));
    }
  }
  if (!options_.machine.json) {
    if (monitor_) report(request);
    return;
  }
  if (monitor_) {
    result_["seconds"] = begin.seconds();
    const auto numbers = [](const MemoryNumbers& m) {
      Json j;
      MemoryNumbers::each(m, [&](const char* name, Bytes b) { j[name] = b.count; });
      return j;
    };
    result_["planned"] = numbers(monitor_->planned());
    result_["measured"] = numbers(monitor_->most());
    if (decoding_) {
      result_["decoding"] = {{"planned", numbers(decoding_->planned())},
                             {"measured", numbers(decoding_->most())}};
    }
  }
  print(result_.dump(2) + "\n");
}

}  // namespace
}  // namespace ballast
