#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "infer/clip_file.h"
#include "infer/first_frame.h"
#include "infer/model_folder.h"
#include "infer/video_sampler.h"
#include "io/weight_files.h"
#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// What `ballast sample` is asked for. Texts are as they were typed; nothing given is the model's
// default.
struct SampleOptions {
  std::string model, high_noise;                     // a file or folder; the other expert
  std::string prompt, prompt_file, negative_prompt;  // a prompt per line of the file
  std::string image;                                 // that the clip begins with
  std::string cond, uncond, image_latent;            // safetensors files instead of them
  std::string vae, text_encoder, tokenizer;          // where the model's folder does not hold them
  std::string output, sheet;  // by its ending images or the latent; a contact sheet of them
  double fps = 0;
  int crf = 10;
  std::string vae_dtype;
  std::optional<std::int64_t> width, height, frames, latent_width, latent_height, steps, layers;
  std::int64_t count = 1;
  std::string sampler, schedule;
  std::optional<double> shift, boundary;
  std::vector<double> guidance;
  bool distilled = false;
  std::vector<double> distilled_timesteps;
  std::uint64_t seed = 0;
  std::vector<std::string> loras;
  std::string merge_folder;
  MachineOptions machine;
  std::string target = "this";
  bool fp8_matmul = false, plan_only = false, details = false;
  // Of the flow-matching trainer's test_inference (docs/training.md).
  std::string checkpoint, dtype;
  double sigma_start = 0.999, sigma_end = 0.01, sigma_multiplier = 1000, sigma_shift = 8;
  bool offload_to_cpu = false;

  bool flow_matching_cli() const { return !checkpoint.empty(); }
};

void declare(SampleOptions& o, CLI::App& app);

// A request with the files it needs open. Weights point into the checkpoints.
struct SampleRun {
  std::vector<WeightFiles> checkpoints;  // by expert
  std::vector<wan::LoraReader> loras;
  infer::VideoJob job;
  infer::ModelFiles files;  // of the parts around the transformer
  std::string output;
  std::vector<std::string> texts;           // prompts; the last is the negative one
  std::vector<std::vector<float>> prompts;  // text states; of texts when they are encoded
  std::vector<float> negative, conditioning, first_frame;
  std::optional<infer::FirstFrame> input_image;
  std::int64_t pixel_frames = 0, width = 0, height = 0;
  double fps = 16;
};

// Whether a step evaluates the negative prompt.
bool guided(const infer::VideoJob& job);
// Whether the clip is decoded: into its file, or a contact sheet beside its latent.
bool wants_images(const SampleOptions& o, const SampleRun& run);
// What images take outside of arenas: libraries; before the loop also the image that the clip
// begins with, while clips are written also the encoder.
enum class MediaUse { before_loop, loop, writing };
// Of clips of that size; nothing given: of the run's own.
std::vector<ProcessLine> media_lines(const SampleOptions& o, const SampleRun& run, MediaUse use,
                                     std::optional<wan::LatentSize> size = {});
// Text states, images and latents of clips that are done: they wait beside every phase.
ProcessLine inputs_line(const SampleOptions& o, const SampleRun& run,
                        std::optional<wan::LatentSize> size = {});

// Everything but the weights is read. Fails where options, files and model contradict each other,
// or the results could not be written.
SampleRun open_sample(const SampleOptions& o);
std::int64_t clips_of(const SampleOptions& o, const SampleRun& run);  // in all

// Latents to files of images. on_frames: after each chunk of them.
void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const infer::ClipFile& file,
                 const std::function<void()>& on_frames);

// Whether decoded images are wanted, by the ending of the name; a .safetensors holds the latent.
bool names_images(const std::string& path);

}  // namespace ballast
