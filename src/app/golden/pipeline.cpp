// Golden files of whole sampling loops: text states, noise and what the VAE would answer are given.

#include <array>
#include <cstring>

#include "app/golden/config.h"
#include "app/golden/results.h"
#include "core/error.h"
#include "core/to_size.h"
#include "infer/condition_image.h"
#include "infer/video_sampler.h"
#include "models/wan/weights.h"

namespace ballast {
namespace {

struct PipelineConfig {
  wan::Config model;
  std::string pipeline;  // t2v, i2v, ti2v
  infer::SamplerOptions sampler;
  std::vector<double> guide;
  double boundary = 0;
  std::int64_t frames = 1, max_area = 0;
  std::vector<std::int64_t> size_wh, text_lens;
};

PipelineConfig read_pipeline(const GoldenFile& file) {
  constexpr std::int64_t kMax = 1 << 16;
  PipelineConfig c;
  c.model.name = file.name();
  JsonReader json = file.config();
  const auto size = [&](std::int64_t& to) { to = json.i64(1, kMax); };
  json.object({
      {"dim", [&] { size(c.model.dim); }},
      {"ffn_dim", [&] { size(c.model.ffn_dim); }},
      {"freq_dim", [&] { size(c.model.freq_dim); }},
      {"in_dim", [&] { size(c.model.in_dim); }},
      {"out_dim", [&] { size(c.model.out_dim); }},
      {"num_heads", [&] { size(c.model.heads); }},
      {"num_layers", [&] { size(c.model.layers); }},
      {"text_dim", [&] { size(c.model.text_dim); }},
      {"text_len", [&] { size(c.model.text_len); }},
      {"eps", [&] { c.model.eps = static_cast<float>(read_number(json, 1e-12, 1)); }},
      {"frame_num", [&] { c.frames = json.i64(1, 4096); }},
      {"max_area", [&] { c.max_area = json.i64(1, 1 << 24); }},
      {"boundary", [&] { c.boundary = read_number(json, 0, 1); }},
      {"shift", [&] { c.sampler.shift = read_number(json, 1e-6, 1e6); }},
      {"steps", [&] { c.sampler.steps = json.i64(1, 1000); }},
      {"size_wh", [&] { c.size_wh = read_sizes(json, 1, kMax); }},
      {"text_lens", [&] { c.text_lens = read_sizes(json, 0, kMax); }},
      {"vae_stride",
       [&] {
         const std::vector<std::int64_t> stride = read_sizes(json, 1, 64);
         if (stride.size() != 3) json.fail_value("a stride is [t, h, w]");
         c.model.spatial_stride = stride[1];
       }},
      {"guide",
       [&] {
         c.guide = json.peek() == JsonReader::Kind::array
                       ? read_numbers(json, -1e4, 1e4)
                       : std::vector{read_number(json, -1e4, 1e4)};
       }},
      {"pipeline", [&] { c.pipeline = json.string(); }},
      {"solver",
       [&] {
         const auto solver = infer::find_solver(json.string());
         if (!solver) json.fail_value("it is no solver");
         c.sampler.solver = *solver;
       }},
  });
  json.finish();
  validate(c.model);
  if (c.pipeline != "t2v" && c.pipeline != "i2v" && c.pipeline != "ti2v") {
    fail_missing_key(file, "pipeline that is t2v, i2v or ti2v");
  }
  if (c.guide.empty() || c.guide.size() > 2) fail_missing_key(file, "guide of one or two numbers");
  if (c.text_lens.size() != 2) fail_missing_key(file, "text_lens of two texts");
  if (c.frames % 4 != 1) fail_missing_key(file, "frame_num that is 4n + 1");
  return c;
}

// The clip's size, and what the encoder is given of an image: [3, frames, height, width].
struct Prepared {
  PixelSize size;
  std::vector<float> frame;  // the first
};

Prepared prepare(const GoldenFile& file, const PipelineConfig& c) {
  Prepared p;
  if (!file.has("in.image")) {
    if (c.size_wh.size() != 2) fail_missing_key(file, "size_wh");
    p.size = {c.size_wh[0], c.size_wh[1]};
    return p;
  }
  const GoldenTensor image = file.load("in.image");
  if (image.dtype != DType::u8 || image.shape.rank() != 3 || image.shape[2] != 3) {
    fail(ErrorCode::input, "{}: in.image is {} {}", file.path(), image.dtype, image.shape);
  }
  const infer::ImageView source_image = {
      {image.shape[1], image.shape[0]},
      {reinterpret_cast<const std::uint8_t*>(image.data.data()), image.data.size()}};
  const std::int64_t multiple = 2 * c.model.spatial_stride;
  if (c.pipeline == "i2v") {
    p.size = infer::i2v_size(source_image.size, c.max_area, multiple);
    p.frame = infer::i2v_frame(source_image, p.size);
  } else {
    p.size = infer::ti2v_size(source_image.size, c.max_area, multiple);
    p.frame = infer::ti2v_frame(source_image, p.size);
  }
  return p;
}

GoldenTensor vae_input(const PipelineConfig& c, const Prepared& p) {
  const std::int64_t frames = c.pipeline == "i2v" ? c.frames : 1;
  const std::int64_t pixels = p.size.width * p.size.height;
  GoldenTensor t =
      golden_tensor("out.vae_input", DType::f32, {3, frames, p.size.height, p.size.width});
  for (std::int64_t colour = 0; colour < 3; ++colour) {
    std::memcpy(t.view().as<float>() + colour * frames * pixels, p.frame.data() + colour * pixels,
                to_size(pixels) * sizeof(float));
  }
  return t;
}

// Every step's values, one after the other.
class PerStep {
 public:
  PerStep(const char* name, std::int64_t steps, const Shape& one)
      : tensor_(golden_tensor(name, DType::f32, stacked(steps, one))) {}
  void add(std::span<const float> values) {
    std::memcpy(tensor_.data.data() + at_, values.data(), values.size_bytes());
    at_ += values.size_bytes();
  }
  GoldenTensor take() { return std::move(tensor_); }

 private:
  static Shape stacked(std::int64_t steps, const Shape& one) {
    Shape s = {steps};
    for (int d = 0; d < one.rank(); ++d) s.push_back(one[d]);
    return s;
  }
  GoldenTensor tensor_;
  std::size_t at_ = 0;
};

infer::VideoJob job_of(const GoldenFile& file, const PipelineConfig& c,
                       const VerifyOptions& options, const wan::LatentSize& latent) {
  infer::VideoJob job;
  job.sampler = c.sampler;
  job.latent = latent;
  job.guidance = {c.guide.front(), c.guide.back()};
  job.boundary = c.boundary;
  job.first_frame = c.pipeline == "ti2v" && file.has("in.image");
  fit::Request& r = job.request;
  r.backend = verify_backend(options);
  r.profile.device = options.device;
  r.policy = options.policy;
  constexpr Bytes kPlenty = {std::uint64_t{1} << 60};
  r.budget = {kPlenty, kPlenty, kPlenty};
  wan::job_of(r).dit.config = c.model;
  wan::job_of(r).dit.precision = {.activation = options.dtype, .residual = DType::f32};
  if (options.dtype == DType::bf16) wan::job_of(r).dit.format = WeightFormat::bf16;
  if (options.fp8_matmul) use_fp8_products(wan::job_of(r).dit, r.backend);
  if (c.pipeline == "ti2v") {
    wan::job_of(r).experts = {weight_groups(c.model, file.checkpoint(), "model.")};
  } else {
    wan::job_of(r).experts = {weight_groups(c.model, file.checkpoint(), "low_noise_model."),
                              weight_groups(c.model, file.checkpoint(), "high_noise_model.")};
  }
  return job;
}

}  // namespace

std::vector<GoldenTensor> recompute_pipeline(const GoldenFile& file, const VerifyOptions& options) {
  const PipelineConfig c = read_pipeline(file);
  const Prepared prepared = prepare(file, c);
  const wan::LatentSize z =
      latent_size(c.model, c.frames, prepared.size.height, prepared.size.width);
  const infer::VideoJob job = job_of(file, c, options, z);
  const Shape latent = {c.model.out_dim, z.frames, z.height, z.width};
  const auto text = [&](const char* name, std::size_t i) {
    return file.load(name, DType::f32, {c.text_lens[i], c.model.text_dim}).floats();
  };
  const std::vector<float> prompt = text("in.context", 0), negative = text("in.context_null", 1);
  const std::vector<float> noise = file.load("in.noise", DType::f32, latent).floats();

  std::vector<GoldenTensor> results;
  std::vector<float> conditioning, first_frame;
  if (!prepared.frame.empty()) results.push_back(vae_input(c, prepared));
  if (c.pipeline == "i2v") {
    conditioning =
        infer::image_conditioning(z, file.load("in.vae_latent", DType::f32, latent).floats());
    results.push_back(golden_tensor("out.y", {c.model.conditioning(), z.frames, z.height, z.width},
                                    conditioning));
  } else if (job.first_frame) {
    first_frame =
        file.load("in.vae_latent", DType::f32, {c.model.out_dim, 1, z.height, z.width}).floats();
  }

  auto outcome = fit::find_plan(fit_request(job));
  check(std::holds_alternative<fit::PlannedRun>(outcome), "a golden file does not fit");
  infer::VideoSampler sampler(job, std::move(std::get<fit::PlannedRun>(outcome)));
  const auto steps = std::ssize(sampler.steps());
  GoldenTensor timesteps = golden_tensor("out.timesteps", DType::i64, {steps});
  const std::int64_t tokens = z.tokens();
  PerStep t_tokens("out.t_tokens", steps, c.pipeline == "ti2v" ? Shape{tokens} : Shape{});
  PerStep input("out.model_input", steps, latent), cond("out.cond", steps, latent),
      uncond("out.uncond", steps, latent), guided("out.guided", steps, latent),
      latents("out.latents", steps, latent);
  const std::vector<float> last =
      sampler.run({.prompt = prompt,
                   .negative = negative,
                   .conditioning = conditioning,
                   .first_frame = first_frame,
                   .noise = noise},
                  [&](const infer::StepReport& s) {
                    timesteps.view().as<std::int64_t>()[s.step - 1] =
                        static_cast<std::int64_t>(s.planned.timestep);
                    std::vector<float> t(to_size(c.pipeline == "ti2v" ? tokens : 1),
                                         static_cast<float>(s.planned.timestep));
                    if (job.first_frame) std::fill_n(t.begin(), tokens / z.frames, 0.0f);
                    t_tokens.add(t);
                    input.add(s.input);
                    cond.add(s.conditional);
                    uncond.add(s.unconditional.empty() ? s.conditional : s.unconditional);
                    guided.add(s.guided);
                    latents.add(s.solved);
                  });
  results.push_back(std::move(timesteps));
  for (PerStep* p : {&t_tokens, &input, &cond, &uncond, &guided, &latents}) {
    results.push_back(p->take());
  }
  results.push_back(golden_tensor("out.final", latent, last));
  return results;
}

}  // namespace ballast
