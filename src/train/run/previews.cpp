#include "train/run/previews.h"

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "infer/clip_file.h"
#include "io/weight_file_parts.h"
#include "plan/display_names.h"
#include "plan/phase.h"
#include "train/run/model_parts.h"

namespace ballast::train {
namespace {

const char* const kPreviewLine = "previews";

void require_part(const std::string& path, const char* what, const char* key, const char* flag,
                  Dialect dialect, const std::vector<std::string>& choices = {}) {
  if (!path.empty()) return;
  const std::string setting = dialect == Dialect::musubi ? fmt::format("--{} FILE", flag)
                                                         : fmt::format("[model] {} = 'FILE'", key);
  infer::require_one(choices, what, setting);
  fail(ErrorCode::input, fmt::format("previews need the model's {}, and there is none", what),
       {{setting, "says where it is"}});
}

std::string cadence_text(const PreviewConfig& p) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (p.at_first) add("before the first step");
  if (p.every.steps) add(fmt::format("every {} steps", *p.every.steps));
  if (p.every.epochs) add(fmt::format("every {} epochs", *p.every.epochs));
  return text;
}

}  // namespace

const char* Previews::ending_of(const infer::Denoising& clip) {
  if (!media_available()) return "gif";
  return clip.latent.frames == 1 ? "png" : "mp4";
}

std::string Previews::prefix_of(std::size_t size) {
  return size == 0 ? "preview." : fmt::format("preview.{}.", size);
}

struct Previews::Decoder {
  WeightFiles file;
  wan_vae::Recognised found;
  std::vector<wan_vae::StoredUnit> units;
  DType dtype = DType::f32;

  wan_vae::Job job(const DecoderSize& size, std::size_t number) const {
    return {.config = found.config,
            .prefix = prefix_of(number),
            .decode = true,
            .height = size.height,
            .width = size.width,
            .dtype = dtype,
            .long_clips = size.long_clips};
  }
  std::size_t variants(const std::vector<DecoderSize>& sizes) const {
    std::size_t most = 0;
    for (const DecoderSize& s : sizes) most = std::max(most, decoding_policies(job(s, 0)).size());
    return most;
  }
  std::vector<std::unique_ptr<wan_vae::Vae>> record(ProgramSet& set,
                                                    const std::vector<DecoderSize>& sizes,
                                                    std::size_t variant) const {
    std::vector<std::unique_ptr<wan_vae::Vae>> all;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const PhaseScope phase(set);
      wan_vae::Job one = job(sizes[i], i);
      const std::vector<wan_vae::Policy> policies = decoding_policies(one);
      one.policy = policies[std::min(variant, policies.size() - 1)];
      all.push_back(
          std::make_unique<wan_vae::Vae>(set, one, std::vector<wan_vae::StoredUnit>(), units));
    }
    return all;
  }
};

Previews::Previews(const PreviewSetting& s)
    : model_(s.model.name),
      fps_(infer::generation_defaults(s.model, s.experts).fps),
      dialect_(s.config.dialect),
      cadence_(cadence_text(s.config.preview)) {
  for (const PreviewClip& asked : s.config.preview.clips) {
    while_doing(fmt::format("planning the preview \"{}\"", printable(asked.prompt, 60)),
                [&] { clips_.push_back(clip_of(asked, s)); });
    const wan::LatentSize& z = clips_.back().what.latent;
    if (media_available() && z.frames > 1) {
      check_can_write_media("preview.mp4", {.width = z.width * s.model.spatial_stride,
                                            .height = z.height * s.model.spatial_stride});
    }
  }
  const infer::ModelFiles parts = parts_of(s.config);
  require_part(parts.vae, "VAE", "vae_path", "vae", dialect_, parts.vae_choices);
  require_part(parts.text_encoder, "text encoder", "llm_path", "t5", dialect_,
               parts.text_encoder_choices);
  require_part(parts.tokenizer, "tokenizer", "tokenizer_path", "tokenizer", dialect_);
  open_decoder(parts.vae, s);
  if (std::ranges::any_of(clips_, [](const Clip& c) { return !c.asked.image.empty(); })) {
    open_image_encoder(parts.vae, s);
  }
  // Whether clips and images can be written and read was tried before any text is encoded.
  encoder_.emplace(
      parts.text_encoder, parts.tokenizer, texts_, s.model,
      infer::TextEncoderOptions{
          .device = s.backend.device,
          .budget = s.budget,
          .threads = s.backend.threads,
          .profile = s.profile,
          .other_lines = {{"media libraries", media_available() ? kMediaLibraries : Bytes{},
                           "FFmpeg's, from their first use on"}}});
  const fit::PlannedRun encoding = infer::require_plan(encoder_->part());
  encoding_device_ = std::max(encoding_device_, encoding.needed(Tier::device));
  encoding_host_ = std::max(encoding_host_, encoding.needed(Tier::host));
  text_numbers_ = encoder_->tokens() * s.model.text_dim;
}

std::size_t Previews::text_number(const std::string& text) {
  const auto found = std::ranges::find(texts_, text);
  if (found != texts_.end()) return to_size(found - texts_.begin());
  texts_.push_back(text);
  return texts_.size() - 1;
}

Previews::Clip Previews::clip_of(const PreviewClip& asked, const PreviewSetting& s) {
  const infer::GenerationDefaults d = infer::generation_defaults(s.model, s.experts);
  Clip clip;
  clip.asked = asked;
  infer::Denoising& what = clip.what;
  what.model = s.model;
  what.experts = s.experts;
  what.sampler.steps = asked.steps;
  what.sampler.shift = asked.shift.value_or(d.shift);
  const std::int64_t stride = s.model.spatial_stride;
  what.latent = latent_size(s.model, asked.frames.value_or(4 * (s.largest.frames - 1) + 1),
                            asked.height.value_or(s.largest.height * stride),
                            asked.width.value_or(s.largest.width * stride));
  if (!asked.image.empty()) {
    if (!infer::takes_first_frame(s.model)) {
      fail(ErrorCode::input,
           fmt::format("{}: {} makes clips of text alone, not of an image", asked.image_named,
                       s.model.name),
           {{"leave it out", "previews of this model begin with noise"}});
    }
    what.latent = latent_at(clip, what.latent.height * stride, what.latent.width * stride);
    what.first_frame = s.model.conditioning() == 0;
  } else if (s.model.conditioning() > 0) {
    fail(ErrorCode::input,
         fmt::format("{} makes a clip of an image, and none is named", s.model.name),
         {{dialect_ == Dialect::musubi ? "--i FILE behind the prompt" : "[preview] image = 'FILE'",
           "the image that it begins with"}});
  }
  what.guidance = {asked.guidance.value_or(d.low_guidance),
                   asked.guidance.value_or(d.high_guidance)};
  what.boundary = s.boundary > 0 ? s.boundary : d.boundary;
  clip.seed = asked.seed.value_or(s.config.seed);
  clip.prompt = text_number(asked.prompt);
  clip.guided = std::ranges::any_of(
      planned_steps(what), [](const infer::PlannedStep& step) { return step.guidance != 1; });
  if (clip.guided) {
    if (clip.asked.negative.empty()) clip.asked.negative = infer::kNegativePrompt;
    clip.negative = text_number(clip.asked.negative);
  }
  return clip;
}

wan::LatentSize Previews::latent_at(const Clip& clip, std::int64_t height,
                                    std::int64_t width) const {
  const wan::Config& model = clip.what.model;
  const std::int64_t stride = model.spatial_stride;
  wan::LatentSize z = clip.what.latent;
  if (!clip.asked.image.empty()) {  // as many pixels, in the image's proportions
    const infer::FirstFrame image{read_image(clip.asked.image)};
    const PixelSize size = clip_size(image, model, height * width);
    height = size.height;
    width = size.width;
  }
  z.height = height / stride;
  z.width = width / stride;
  return z;
}

void Previews::open_decoder(const std::string& path, const PreviewSetting& s) {
  WeightFiles file = open_part(path, ModelPart::vae);
  const auto found = wan_vae::recognise(file);
  if (!found) {
    fail(ErrorCode::input, fmt::format("{} holds no VAE of Wan", path),
         {{"ballast inspect " + path, "says what it is"}});
  }
  infer::require_latents_of(s.model, found->config, path);
  std::vector<wan_vae::StoredUnit> units =
      stored_units(wan_vae::decoder(found->config), file, found->dialect);
  decoder_ = std::make_shared<Decoder>(
      Decoder{.file = std::move(file),
              .found = *found,
              .units = std::move(units),
              .dtype = s.backend.device == Device::cuda ? DType::bf16 : DType::f32});
}

void Previews::open_image_encoder(const std::string& path, const PreviewSetting& s) {
  image_encoder_ = std::make_unique<infer::VideoEncoder>(
      path, infer::VideoCodecOptions{.device = s.backend.device,
                                     .dtype = decoder_->dtype,
                                     .budget = s.budget,
                                     .threads = s.backend.threads});
  for (const Clip& c : clips_) {
    if (c.asked.image.empty()) continue;
    const wan::LatentSize& z = c.what.latent;
    const fit::PlannedRun planned =
        image_encoder_->plan(z.height, z.width, !c.what.first_frame && z.frames > 1);
    encoding_device_ = std::max(encoding_device_, planned.needed(Tier::device));
    encoding_host_ = std::max(encoding_host_, planned.needed_ram());
  }
}

void Previews::encode_image(Clip& clip) {
  const infer::Denoising& what = clip.what;
  const std::int64_t stride = what.model.spatial_stride;
  std::vector<float> latent = infer::encode_first_frame(
      *image_encoder_, {read_image(clip.asked.image)}, what.model,
      {what.latent.width * stride, what.latent.height * stride}, 4 * (what.latent.frames - 1) + 1);
  if (what.first_frame) {
    clip.first_frame = std::move(latent);
  } else {
    clip.conditioning = infer::image_conditioning(what.latent, latent);
  }
}

std::vector<Previews::DecoderSize> Previews::sizes_of(const std::vector<Clip>& clips) {
  std::vector<DecoderSize> all;
  for (const Clip& c : clips) {
    const wan::LatentSize& z = c.what.latent;
    const std::size_t known = find_size(all, z);
    if (known == all.size()) all.push_back({z.height, z.width, false});
    all[known].long_clips |= z.frames > 1;
  }
  return all;
}

std::size_t Previews::find_size(const std::vector<DecoderSize>& sizes, const wan::LatentSize& z) {
  const auto found = std::ranges::find_if(
      sizes, [&](const DecoderSize& s) { return s.height == z.height && s.width == z.width; });
  return to_size(found - sizes.begin());
}

std::vector<wan::Batch> Previews::batches_of(const std::vector<Clip>& clips) {
  std::vector<wan::Batch> all;
  for (const Clip& c : clips) {
    for (const wan::Batch& b : infer::batches_of(c.what)) {
      if (std::ranges::find(all, b) == all.end()) all.push_back(b);
    }
  }
  return all;
}

ProcessLine Previews::line(const std::vector<Clip>& clips) const {
  Bytes denoiser, pixel_frames, images, libraries;
  for (const Clip& c : clips) {
    const wan::LatentSize& z = c.what.latent;
    const std::int64_t stride = c.what.model.spatial_stride;
    const auto pixels = static_cast<std::uint64_t>(z.height * z.width * stride * stride);
    const auto chunk = static_cast<std::uint64_t>(
        infer::chunk_values(decoder_->found.config, z.height, z.width, z.frames > 1));
    const MediaWriting writing =
        media_writing(fmt::format("clip.{}", ending_of(c.what)), z.height * stride,
                      z.width * stride, 4 * (z.frames - 1) + 1);
    denoiser = std::max(denoiser, denoiser_bytes(c.what));
    const std::int64_t channels =
        c.what.first_frame ? c.what.model.out_dim : c.what.model.conditioning() * z.frames;
    if (!c.asked.image.empty()) {
      images += Bytes{static_cast<std::uint64_t>(channels * z.height * z.width) * sizeof(float)};
    }
    libraries = std::max(libraries, writing.libraries);
    pixel_frames = std::max(pixel_frames, Bytes{4 * chunk + 3 * pixels} + writing.encoder);
  }
  const Bytes texts{static_cast<std::uint64_t>(text_numbers_) * sizeof(float)};
  return {kPreviewLine, texts + images + denoiser + pixel_frames + libraries,
          "text states, images; the latent, frames on their way to a file"};
}

void Previews::put(fit::Request& r, const std::vector<Clip>& clips) const {
  std::erase_if(r.other_lines, [](const ProcessLine& l) { return l.name == kPreviewLine; });
  wan::AuxiliaryModel& auxiliary_model = wan::job_of(r).auxiliary_model = {};
  wan::job_of(r).dit.predict_batches = batches_of(clips);
  if (clips.empty()) return;
  r.other_lines.push_back(line(clips));
  const std::vector<DecoderSize> sizes = sizes_of(clips);
  for (std::size_t variant = 0; variant < decoder_->variants(sizes); ++variant) {
    auxiliary_model.variants.push_back([decoder = decoder_, sizes, variant](ProgramSet& set) {
      (void)decoder->record(set, sizes, variant);
    });
  }
}

void Previews::add_to(fit::Request& request) const { put(request, clips_); }

std::vector<fit::Change> Previews::changes(const fit::Request& request) const {
  const bool musubi = dialect_ == Dialect::musubi;
  const std::string lines = musubi ? "--sample_prompts" : "[preview] prompts";
  const auto with = [this](const std::function<void(Clip&)>& edit) {
    std::vector<Clip> clips = clips_;
    for (Clip& c : clips) edit(c);
    return [this, clips](fit::Request& r) { put(r, clips); };
  };
  const auto said_in_lines = [&](bool PreviewClip::*own) {
    return musubi || std::ranges::any_of(clips_, [&](const Clip& c) { return c.asked.*own; });
  };
  std::int64_t frames = 1;
  wan::LatentSize widest = {1, 2, 2};
  for (const Clip& c : clips_) {
    frames = std::max(frames, c.what.latent.frames);
    widest.height = std::max(widest.height, c.what.latent.height);
    widest.width = std::max(widest.width, c.what.latent.width);
  }
  std::vector<fit::Change> all;
  const auto at_most = [&](std::int64_t most) {
    return with([most](Clip& c) { c.what.latent.frames = std::min(c.what.latent.frames, most); });
  };
  if (frames > 1) {
    const std::int64_t fit = 1 + fit::largest_fitting(frames - 2, request, [&](std::int64_t more) {
                               return at_most(1 + more);
                             });
    const std::int64_t pixel_frames = 4 * (fit - 1) + 1;
    all.push_back({said_in_lines(&PreviewClip::own_frames)
                       ? fmt::format("at most --f {} in the lines of {}", pixel_frames, lines)
                       : fmt::format("[preview] frames = {}", pixel_frames),
                   at_most(fit)});
  }
  const auto half = [](std::int64_t cells) { return std::max<std::int64_t>(2, cells / 4 * 2); };
  if (half(widest.height) < widest.height || half(widest.width) < widest.width) {
    const std::int64_t stride = wan::job_of(request).dit.config.spatial_stride;
    const std::int64_t h = half(widest.height), w = half(widest.width);
    all.push_back({said_in_lines(&PreviewClip::own_size)
                       ? fmt::format("at most --w {} --h {} in the lines of {}", w * stride,
                                     h * stride, lines)
                       : fmt::format("[preview] width = {}, height = {}", w * stride, h * stride),
                   with([&](Clip& c) {
                     const wan::LatentSize z = c.what.latent;
                     const bool image = !c.asked.image.empty();  // its proportions are its own
                     c.what.latent = latent_at(c, (image ? h : std::min(z.height, h)) * stride,
                                               (image ? w : std::min(z.width, w)) * stride);
                   })});
  }
  all.push_back(
      {musubi ? "no --sample_prompts" : "no [preview]", [this](fit::Request& r) { put(r, {}); }});
  return all;
}

std::vector<std::string> Previews::notes(const fit::PlannedRun& planned) const {
  const auto seconds = [&](const std::string& name) {
    return planned.times[to_size(planned.set.program_index(name))].seconds;
  };
  const std::vector<wan::Batch> batches = batches_of(clips_);
  const std::vector<DecoderSize> sizes = sizes_of(clips_);
  double all = 0;
  for (const Clip& c : clips_) {
    for (const infer::PlannedStep& step : planned_steps(c.what)) {
      const auto kind = std::ranges::find(batches, infer::batch_of(c.what, step)) - batches.begin();
      all += seconds(wan::expert_program(wan::run_program("predict", to_size(kind)), step.expert));
    }
    const wan::LatentSize& z = c.what.latent;
    const std::string prefix = prefix_of(find_size(sizes, z));
    all += seconds(prefix + "load") + seconds(prefix + "decode.start");
    if (z.frames > 1) all += static_cast<double>(z.frames - 1) * seconds(prefix + "decode.next");
  }
  std::string time = all >= 90 ? fmt::format("{:.1f} min", all / 60) : fmt::format("{:.1f} s", all);
  return {
      fmt::format("previews: {} clip{} {}, {} predicted for {}", clips_.size(),
                  clips_.size() == 1 ? "" : "s", cadence_, time, clips_.size() == 1 ? "it" : "all"),
      fmt::format("previews: {} texts{} are encoded before the first step, in {} of {} and {} of "
                  "RAM",
                  texts_.size(), image_encoder_ ? " and the images" : "", encoding_device_,
                  memory_name(Tier::device, planned.set.backend.device == Device::cpu),
                  encoding_host_)};
}

void Previews::encode() {
  if (!encoder_) return;
  {
    Progress progress("encoding the previews' prompts", 1);
    states_ = encoder_->run();
    progress.add();
  }
  encoder_.reset();
  for (Clip& c : clips_) {
    if (!c.asked.image.empty()) encode_image(c);
  }
  image_encoder_.reset();
}

void Previews::record(ProgramSet& set, std::size_t variant) {
  recorded_sizes_ = sizes_of(clips_);
  recorded_ = decoder_->record(set, recorded_sizes_, variant);
}

}  // namespace ballast::train
