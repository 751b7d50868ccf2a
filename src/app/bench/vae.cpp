#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "app/bench/benches.h"
#include "app/bench/kernel_times.h"
#include "app/bench/random_checkpoint.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "infer/video_codec.h"
#include "memory/gpu.h"
#include "models/wan_vae/layers.h"
#include "nn/machine_options.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

wan_vae::Config preset(const std::string& name) {
  std::vector<std::string_view> known;
  for (const wan_vae::Config& c : wan_vae::presets()) {
    if (c.name == name) return c;
    known.push_back(c.name);
  }
  fail_unknown("--model", name, known);
}

std::vector<RandomTensor> tensors(const wan_vae::Config& c) {
  std::vector<RandomTensor> all;
  for (const wan_vae::Network& net : {wan_vae::encoder(c), wan_vae::decoder(c)}) {
    for (const wan_vae::Stage& stage : net) {
      for (const wan_vae::Unit& u : stage.units) {
        for (const wan_vae::UnitTensor& t : tensors_of(u)) all.push_back({t.name, t.shape});
      }
    }
  }
  return all;
}

// Adds up what it is given, so that two ways of computing the same can be compared.
class Digest {
 public:
  void add(std::span<const float> values) {
    for (const float v : values) {
      sum_ = (sum_ ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ULL;
    }
  }
  std::string text() const { return fmt::format("{:016x}", sum_); }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325ULL;
};

// ballast bench vae: a clip through one half of a Wan VAE of random weights, as `sample` and
// `cache` do it.
class BenchVae : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  std::string model_ = "wan2.1-vae", part_ = "decode", folder_ = "/tmp", dtype_;
  std::int64_t height_ = 480, width_ = 832, frames_ = 81, clips_ = 1;
  std::int64_t streamed_ = 0, histories_ = 0, bands_ = 1;
  bool kernels_ = false, slices_ = false;
  MachineOptions machine_;
};

void BenchVae::declare(CLI::App& app) {
  app.add_option("--model", model_, "wan2.1-vae or wan2.2-vae");
  app.add_option("--part", part_, "decode or encode")->check(CLI::IsMember({"decode", "encode"}));
  app.add_option("--height", height_, "pixels")->check(CLI::Range(16, 8192));
  app.add_option("--width", width_, "pixels")->check(CLI::Range(16, 8192));
  app.add_option("--frames", frames_, "of pixels, 4 n + 1")->check(CLI::Range(1, 100000));
  app.add_option("--clips", clips_, "timed, after a short one that is not")
      ->check(CLI::Range(1, 100));
  app.add_option("--dtype", dtype_, "bf16 or f32 (default: bf16 on a GPU)")
      ->check(CLI::IsMember({"bf16", "f32"}));
  declare_machine(app, machine_, {"gpu", "ram", "json"});
  app.add_flag("--slices", slices_, "this policy: frames one by one");
  app.add_option("--streamed", streamed_, "... weights of so many units, the first, from RAM");
  app.add_option("--histories", histories_, "... the last frames of so many convolutions there");
  app.add_option("--bands", bands_, "... so many bands of rows, one after the other")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", folder_, "where the file of random weights goes");
  app.add_flag("--kernels", kernels_, "a table of what takes the time, by operation");
}

void BenchVae::run() {
  const wan_vae::Config config = preset(model_);
  const train::RunTarget target = train::this_machine(machine_);
  const bool gpu = target.backend.device == Device::cuda;
  infer::VideoCodecOptions options = {.device = target.backend.device,
                                      .dtype = dtype_.empty()
                                                   ? (gpu ? DType::bf16 : DType::f32)
                                                   : (dtype_ == "bf16" ? DType::bf16 : DType::f32)};
  // Without a budget nothing limits it.
  options.budget.gpu = machine_.gpu.value_or(Bytes{});
  options.budget.host = machine_.ram.value_or(Bytes{});
  if (slices_ || streamed_ > 0 || histories_ > 0 || bands_ > 1) {
    options.policy = {.slices = slices_,
                      .streamed_units = to_size(streamed_),
                      .hosted_histories = static_cast<int>(histories_),
                      .bands = bands_};
  }
  const RandomCheckpoint weights(tensors(config), DType::bf16, folder_);
  const std::int64_t side = config.pixels_per_latent(), h = height_ / side, w = width_ / side;
  const std::int64_t latent_frames = wan_vae::latent_frames(frames_);

  std::unique_ptr<infer::VideoDecoder> decoder;
  std::unique_ptr<infer::VideoEncoder> encoder;
  infer::VideoCodec* codec = nullptr;
  std::vector<float> latent;
  if (part_ == "decode") {
    codec = (decoder = std::make_unique<infer::VideoDecoder>(weights.path(), options)).get();
    latent.resize(to_size(config.z_dim * latent_frames * h * w));
    fill_normal(random_source(1, "bench", 0, "latent"), 0, latent.data(), std::ssize(latent));
  } else {
    codec = (encoder = std::make_unique<infer::VideoEncoder>(weights.path(), options)).get();
  }
  const fit::PlannedRun planned = codec->plan(h, w, latent_frames > 1);
  std::string digest;
  const auto pass = [&](std::int64_t frames) {  // of latents
    Digest sum;
    if (decoder) {
      decoder->decode(std::span(latent).first(to_size(config.z_dim * frames * h * w)), frames, h, w,
                      [&](const infer::VideoDecoder::Frames& f) { sum.add(f.pixels); });
    } else {
      sum.add(encoder->encode(
          wan_vae::pixel_frames(frames), h * side, w * side,
          [](std::int64_t first, std::int64_t, std::span<float> to) {
            for (std::size_t i = 0; i < to.size(); ++i) {
              to[i] = static_cast<float>((i * 37 + to_size(first)) % 255) / 127.5f - 1;
            }
          }));
    }
    digest = sum.text();
  };
  pass(std::min<std::int64_t>(latent_frames, 3));
  std::vector<double> times;
  for (std::int64_t i = 0; i < clips_; ++i) {
    const Stopwatch begin;
    pass(latent_frames);
    times.push_back(begin.seconds());
  }
  std::ranges::sort(times);
  const double seconds = times[times.size() / 2];
  const Bytes arena = codec->memory()->peak_of(Tier::device);
  Json j = {{"model", model_},
            {"part", part_},
            {"frames", frames_},
            {"height", height_},
            {"width", width_},
            {"policy", wan_vae::policy_text(planned)},
            {"seconds", seconds},
            {"predicted_seconds", planned.seconds_per_step() * static_cast<double>(latent_frames)},
            {"device_planned", planned.needed(Tier::device).count},
            {"arena", arena.count},
            {"host_planned", planned.needed_ram().count},
            {"digest", digest}};
  if (gpu) j["device_used"] = gpu_memory_of_process().count;
  KernelTimes kernels;
  if (kernels_ && gpu) {
    codec->runner()->time_instructions(true);
    pass(2);  // what the runner knows afterwards is its last chunk
    kernels.add(*codec->runner());
    j["kernels"] = kernels.json();
  }
  if (machine_.json) {
    print(j.dump(2) + "\n");
    return;
  }
  print(fmt::format("{} {}: {} frames of {} x {}, {}\n", model_, part_, frames_, width_, height_,
                    wan_vae::policy_text(planned)));
  print(fmt::format("{:.3f} s a clip ({:.1f} ms a latent frame; predicted {:.3f} s), digest {}\n",
                    seconds, seconds * 1e3 / static_cast<double>(latent_frames),
                    j["predicted_seconds"].get<double>(), digest));
  print(fmt::format("device {} planned{}, host {} planned\n", planned.needed(Tier::device),
                    gpu ? fmt::format(", {} used", gpu_memory_of_process()) : "",
                    planned.needed_ram()));
  print(kernels.table());
}

}  // namespace

std::unique_ptr<Command> bench_vae() { return std::make_unique<BenchVae>(); }

}  // namespace ballast
