#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "infer/video_sampler.h"
#include "io/checkpoint.h"

namespace CLI {
class App;
}

namespace ballast {

// What `ballast sample` is asked for. Texts are as they were typed; nothing given is the model's
// default.
struct SampleOptions {
  std::string model, high_noise;           // a file or folder; the other expert
  std::string cond, uncond, image_latent;  // safetensors files
  std::string output = "sample.latent.safetensors";
  std::int64_t width = 0, height = 0, frames = 0, latent_width = 0, latent_height = 0;
  std::int64_t steps = 0, count = 1;
  std::string sampler, schedule;
  double shift = 0, boundary = 0;
  std::vector<double> guidance;
  bool distilled = false;
  std::uint64_t seed = 0;
  std::vector<std::string> loras;
  std::string merge_folder;
  std::string gpu, ram, disk, policy = "auto", weights = "stored", device = "auto", target = "this";
  int threads = 0;
  bool fp8_matmul = false, non_deterministic = false, json = false, plan_only = false;
  // Of source note 001's test_inference.
  std::string checkpoint, dtype;
  double sigma_start = 0.999, sigma_end = 0.01, sigma_multiplier = 1000, sigma_shift = 8;
  std::int64_t layers = 0;
  bool offload_to_cpu = false;

  bool note001() const { return !checkpoint.empty(); }
};

void declare(SampleOptions& o, CLI::App& app);

// A request with the files it needs open. Weights point into the checkpoints.
struct SampleRun {
  std::vector<Checkpoint> checkpoints;  // by expert
  std::vector<wan::LoraReader> loras;
  infer::VideoJob job;
  std::vector<float> prompt, negative, conditioning, first_frame;
  std::int64_t pixel_frames = 0, width = 0, height = 0;
  double fps = 16;
};

// Everything but the weights is read. Fails where options, files and model contradict each other.
SampleRun open_sample(const SampleOptions& o);

}  // namespace ballast
