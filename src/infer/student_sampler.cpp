#include "infer/student_sampler.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "infer/finite_output.h"
#include "io/atomic_file.h"
#include "io/frame_values.h"
#include "io/media_writer.h"
#include "io/safetensors_writer.h"
#include "models/student/student_files.h"

namespace ballast::infer {

fit::Request student_request(student::Job job, std::int64_t steps, const Backend& backend,
                             const MachineProfile& profile, const Budget& budget) {
  Bytes largest;
  student::each_parameter(job.config, [&](int, const std::string&, const Shape& shape) {
    largest = std::max(largest, Bytes{static_cast<std::uint64_t>(shape.elements()) * 4});
  });
  student::SampleFitJob planned;
  planned.student = std::move(job);
  planned.steps = steps;
  return {.job = std::move(planned),
          .backend = backend,
          .profile = profile,
          .budget = budget,
          .other_lines = {{"largest tensor", largest, "on its way from the file"}}};
}

CommandPart student_part(fit::Request request, const std::string& folder) {
  const auto& job = request.job.as<student::SampleFitJob>();
  const student::Config& c = job.student.config;
  PlanTitle title = title_of(request, folder, "sample",
                             fmt::format("one latent of {} x {}, {} step{}", c.grid(), c.grid(),
                                         job.steps, job.steps == 1 ? "" : "s"));
  return {std::move(request), std::move(title)};
}

std::vector<StudentStep> student_steps(std::int64_t steps) {
  if (steps < 1 || steps > 1000) {
    fail(ErrorCode::usage, "{} steps: expected 1 to 1000", steps);
  }
  constexpr double kFirst = 999, kMin = 1e-3;
  std::vector<StudentStep> all(to_size(steps));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double share = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    all[i].t = std::floor(kFirst * (1 - share));
    all[i].alpha = std::clamp(1 - all[i].t / 1000, kMin, 1 - kMin);
    if (i > 0) all[i - 1].next_alpha = all[i].alpha;
  }
  return all;
}

std::vector<float> StudentSampler::run(std::span<const float> text, std::int64_t steps,
                                       std::uint64_t seed, std::int64_t number) {
  const student::Config& c = student_.job().config;
  const auto places = to_size(c.tokens());
  const auto own = to_size(c.num_channels);
  const auto wanted = to_size(c.teacher_channels);
  const bool projected = c.projects() && own < wanted;
  const std::size_t width = projected ? wanted : own;
  std::vector<float> noise(places * own), x(places * width);
  fill_normal(random_source(seed, "student_sample", number, "latent"), 0, noise.data(),
              std::ssize(noise));
  for (std::size_t p = 0; p < places; ++p) {
    for (std::size_t k = 0; k < width; ++k) x[p * width + k] = noise[p * own + k % own];
  }
  const student::SampleIo& io = student_.samples()[0];
  check(std::ssize(text) == c.text_dim, "a text vector of {} numbers for {}", text.size(),
        c.text_dim);
  for (const StudentStep& step : student_steps(steps)) {
    float* latent = runner_.view(io.latent).as<float>();
    for (std::size_t p = 0; p < places; ++p) {
      std::copy_n(x.data() + p * width, own, latent + p * own);
    }
    std::ranges::copy(text, runner_.view(io.text).as<float>());
    student::time_features(step.t, {runner_.view(io.time).as<float>(), to_size(c.hidden_size)});
    runner_.run(student::Student::kPredict);
    const float* e = runner_.view(c.projects() && !projected ? io.own : io.output).as<float>();
    const double a = step.alpha, b = step.next_alpha;
    const double keep = std::sqrt(b / a);
    const double add = std::sqrt(1 - b) - keep * std::sqrt(1 - a);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(keep * x[i] + add * e[i]);
    }
  }
  require_finite(x, "the latent that the student made");
  std::vector<float> z(wanted * places);
  for (std::size_t k = 0; k < wanted; ++k) {
    for (std::size_t p = 0; p < places; ++p) z[k * places + p] = x[p * width + k];
  }
  return z;
}

void mean_rows(std::span<const float> rows, std::int64_t count, std::span<float> to) {
  std::vector<double> sums(to.size(), 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i % to.size()] += rows[i];
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(sums[i] / static_cast<double>(count));
  }
}

namespace {

// Where a sample goes as a latent; nothing: it is decoded.
std::optional<std::string> latent_path(const std::string& vae, const std::string& path) {
  std::filesystem::path to = path;
  if (!vae.empty() && to.extension() != ".safetensors") return std::nullopt;
  return to.replace_extension(".safetensors").string();
}

}  // namespace

void require_latents_of(const student::Config& c, const wan_vae::Config& vae,
                        const std::string& path, const std::string& folder) {
  if (vae.z_dim == c.teacher_channels) return;
  std::string text = fmt::format("{} decodes latents of {} channels, the student's samples have {}",
                                 path, vae.z_dim, c.teacher_channels);
  std::vector<Advice> advice;
  if (!folder.empty() && !c.projects()) {
    text += fmt::format(": {} has no {}, the projection to its teacher's channels", folder,
                        student::kProjectionFile);
    advice.push_back(
        {fmt::format("copy {} of the folder that the distillation saved", student::kProjectionFile),
         fmt::format("it belongs beside {}", student::kWeightsFile)});
  }
  advice.push_back({"--vae FILE", "the VAE that belongs to the teacher"});
  fail(ErrorCode::input, std::move(text), std::move(advice));
}

std::optional<CommandPart> check_student_sample(const student::Config& c, const std::string& folder,
                                                const std::string& vae,
                                                const VideoCodecOptions& options,
                                                const std::string& path) {
  const auto latent = latent_path(vae, path);
  check_can_write(latent.value_or(path));
  if (latent) return std::nullopt;
  if (!path.ends_with(".png")) {
    fail(ErrorCode::usage,
         "{}: a student's sample is one image, expected a name that ends in .png, or "
         "in .safetensors for the latent",
         path);
  }
  const VideoDecoder decoder(vae, options);
  require_latents_of(c, decoder.config(), vae, folder);
  const std::int64_t side = c.grid() * decoder.config().pixels_per_latent();
  check_can_write_media("image.png", {.width = side, .height = side});
  return decoder.part(c.grid(), c.grid(), false);
}

std::string save_student_sample(std::span<const float> latent, const student::Config& c,
                                const std::string& vae, const VideoCodecOptions& options,
                                const std::string& path) {
  if (const auto to = latent_path(vae, path)) {
    SafetensorsWriter writer;
    writer.add("latent", DType::f32, {c.teacher_channels, 1, c.grid(), c.grid()},
               std::as_bytes(latent));
    writer.write(*to);
    return *to;
  }
  VideoDecoder decoder(vae, options);
  decoder.decode(latent, 1, c.grid(), c.grid(), [&](const VideoDecoder::Frames& f) {
    RgbImage image = {.width = f.width, .height = f.height};
    image.pixels.resize(to_size(f.width * f.height * 3));
    require_finite(f.pixels.first(image.pixels.size()), "the image that the VAE decoded");
    to_bytes(f.pixels.first(image.pixels.size()), FrameRounding::nearest, image.pixels);
    write_png(path, image);
  });
  return path;
}

}  // namespace ballast::infer
