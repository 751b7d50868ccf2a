// Golden files about samplers: schedules, and the walk of a latent under a formula for a network.

#include <charconv>
#include <cmath>
#include <cstring>

#include "app/golden/config.h"
#include "app/golden/results.h"
#include "core/error.h"
#include "core/to_size.h"
#include "infer/sampler.h"

namespace ballast {
namespace {

struct SamplersConfig {
  float a = 0, c = 0;  // v = tanh(a x + c t / 1000)
  std::vector<std::string> runs;
};

SamplersConfig read_samplers(const GoldenFile& file) {
  SamplersConfig config;
  JsonReader json = file.config();
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "a") {
      config.a = static_cast<float>(read_number(json, -1e6, 1e6));
    } else if (key == "c") {
      config.c = static_cast<float>(read_number(json, -1e6, 1e6));
    } else if (key == "runs") {
      json.open_array();
      while (json.next_element()) {
        if (config.runs.size() == kGoldenListMembers) json.fail_here("too many runs");
        config.runs.emplace_back(json.string());
      }
    } else {
      json.skip();
    }
  }
  json.finish();
  if (config.runs.empty()) fail_missing_key(file, "runs");
  return config;
}

// "unipc.steps4.shift3"
infer::SamplerOptions parse_run(const GoldenFile& file, std::string_view run) {
  const auto refuse = [&] {
    fail(ErrorCode::input, "{}: golden.config: the run \"{}\" is none like unipc.steps4.shift3",
         file.path(), printable(std::string(run)));
  };
  infer::SamplerOptions options;
  const std::size_t steps = run.find(".steps"), shift = run.find(".shift");
  if (steps == std::string_view::npos || shift == std::string_view::npos || shift < steps) refuse();
  const auto solver = infer::find_solver(run.substr(0, steps));
  if (!solver) refuse();
  options.solver = *solver;
  const auto number = [&](std::size_t from, std::size_t to, auto& value) {
    const auto end = std::from_chars(run.data() + from, run.data() + to, value);
    if (end.ec != std::errc() || end.ptr != run.data() + to) refuse();
  };
  number(steps + 6, shift, options.steps);
  number(shift + 6, run.size(), options.shift);
  if (options.steps > 1000) refuse();  // before anything is sized by it
  return options;
}

}  // namespace

std::vector<GoldenTensor> recompute_samplers(const GoldenFile& file, const VerifyOptions&) {
  const SamplersConfig config = read_samplers(file);
  const GoldenTensor noise = file.load("in.noise");
  if (noise.dtype != DType::f32 || noise.shape.rank() > 6) {
    fail(ErrorCode::input, "{}: in.noise is {} {}", file.path(), noise.dtype, noise.shape);
  }
  const auto elements = to_size(noise.shape.elements());
  std::vector<GoldenTensor> results;
  for (const std::string& run : config.runs) {
    const infer::SamplerOptions options = parse_run(file, run);
    infer::Sampler sampler(options, elements);
    const infer::Schedule& schedule = sampler.schedule();
    results.push_back(
        golden_tensor(run + ".sigmas", {schedule.steps() + 1}, std::span(schedule.sigmas)));
    const bool whole = options.solver != infer::Solver::euler;
    GoldenTensor& t = results.emplace_back(
        golden_tensor(run + ".timesteps", whole ? DType::i64 : DType::f32, {schedule.steps()}));
    for (std::size_t i = 0; i < schedule.timesteps.size(); ++i) {
      if (whole) {
        t.view().as<std::int64_t>()[i] = static_cast<std::int64_t>(schedule.timesteps[i]);
      } else {
        t.view().as<float>()[i] = static_cast<float>(schedule.timesteps[i]);
      }
    }
    Shape shape = {schedule.steps() + 1};
    for (int d = 0; d < noise.shape.rank(); ++d) shape.push_back(noise.shape[d]);
    GoldenTensor& latents =
        results.emplace_back(golden_tensor(run + ".latents", DType::f32, shape));
    std::vector<float> x(elements), v(elements);
    std::memcpy(x.data(), noise.data.data(), noise.data.size());
    std::byte* to = latents.data.data();
    std::memcpy(to, x.data(), noise.data.size());
    while (!sampler.done()) {
      const auto time = static_cast<float>(schedule.timesteps[to_size(sampler.next())]);
      for (std::size_t e = 0; e < elements; ++e) {
        v[e] = std::tanh(config.a * x[e] + config.c * (time / 1000));
      }
      sampler.step(v, x);
      to += noise.data.size();
      std::memcpy(to, x.data(), noise.data.size());
    }
  }
  return results;
}

}  // namespace ballast
