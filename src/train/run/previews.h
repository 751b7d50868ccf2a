#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fit/advice.h"
#include "infer/denoiser.h"
#include "infer/first_frame.h"
#include "models/wan/fit_job.h"
#include "models/wan_vae/fit_job.h"
#include "report/event_file.h"
#include "train/config/config.h"
#include "train/run/prompt_part.h"

namespace ballast::train {

// What previews need to know of the run that draws them.
struct PreviewSetting {
  const TrainConfig& config;
  const wan::Config& model;
  int experts = 1;
  double boundary = 0;           // between them
  wan::LatentSize largest = {};  // of the clips that are trained on
  const Backend& backend;
  const MachineProfile& profile;
  const Budget& budget;
};

// Who draws, between two steps.
struct PreviewArtist {
  const wan::Dit& dit;
  Runner& runner;
  std::function<bool(int)> use_expert;  // whether its weights had to be read
  std::function<bool()> stop;           // asked between steps and chunks
};

// A clip that was drawn.
struct DrawnPreview {
  std::size_t number = 0;  // of the clip
  std::string file;        // in the folder
  std::string prompt;
  EncodedImage sheet = {};  // some of its frames, small; empty: nothing here makes such an image
};

// Clips that a run draws of itself while it trains. The transformer answers with the very weights
// and adapters in training; its passes and the decoder's programs are phases of the run's plan,
// whose temporaries they share with the steps'. Nothing of the training changes: what a preview
// writes is written anew by the step that follows.
class Previews {
 public:
  // Opens what is named, headers only. Fails with ErrorCode::input or usage where a clip cannot be
  // drawn, with ErrorCode::refused where the prompts cannot be encoded inside the budget.
  explicit Previews(const PreviewSetting& setting);

  // What fit() is told: passes for each kind of clip, the decoder's programs, what waits in memory.
  void add_to(fit::Request& request) const;
  // What could be drawn instead where that does not fit.
  std::vector<fit::Change> changes(const fit::Request& request) const;
  // For people, a sentence each.
  std::vector<std::string> notes(const fit::PlannedRun& planned) const;

  // Once, before the run takes its memory: prompts and the images that clips begin with. The
  // encoders are gone when this returns.
  void encode();
  // The decoder's programs, behind the transformer's. way: wan::Companion::way as planned.
  void record(ProgramSet& set, std::size_t variant);

  // Draws all clips as the model is after `step` into folder, which is made. Fewer come back where
  // it was told to stop.
  std::vector<DrawnPreview> draw(const PreviewArtist& artist, std::int64_t step,
                                 const std::string& folder) const;

 private:
  struct Clip {
    PreviewClip asked;
    infer::Denoising what;
    std::uint64_t seed = 0;
    std::size_t prompt = 0, negative = 0;  // among the texts; the negative one where it is guided
    bool guided = false;
    // Of its image: what the transformer is given beside the latent (I2V), or the first frame of
    // it (TI2V).
    std::vector<float> conditioning = {}, first_frame = {};
  };
  // One size of decoded clips.
  struct DecoderSize {
    std::int64_t height = 0, width = 0;
    bool long_clips = false;  // some have more than one frame of latents
  };
  struct Decoder;

  static const char* ending_of(const infer::Denoising& clip);  // of its file
  static std::string prefix_of(std::size_t size);              // of the programs that decode a size
  static std::vector<DecoderSize> sizes_of(const std::vector<Clip>& clips);
  static std::size_t find_size(const std::vector<DecoderSize>& sizes, const wan::LatentSize& z);
  static std::vector<wan::Batch> batches_of(const std::vector<Clip>& clips);
  Clip clip_of(const PreviewClip& asked, const PreviewSetting& setting);
  std::size_t text_number(const std::string& text);
  void open_decoder(const std::string& path, const PreviewSetting& setting);
  void open_image_encoder(const std::string& path, const PreviewSetting& setting);
  void encode_image(Clip& clip);
  ProcessLine line(const std::vector<Clip>& clips) const;
  void put(fit::Request& request, const std::vector<Clip>& clips) const;
  // The size of its latent when it is asked for in so many pixels.
  wan::LatentSize latent_at(const Clip& clip, std::int64_t height, std::int64_t width) const;
  bool draw_one(const PreviewArtist& artist, const Clip& clip, std::size_t number,
                const std::string& path, std::int64_t step, EncodedImage& sheet) const;
  std::string comment(const Clip& clip, std::int64_t step) const;

  std::string model_;
  double fps_ = 16;
  Dialect dialect_;
  std::string cadence_;  // "every 200 steps"
  std::vector<Clip> clips_;
  std::vector<std::string> texts_;
  std::optional<PromptPart> encoder_;
  std::unique_ptr<infer::VideoEncoder> image_encoder_;  // null: no clip begins with an image
  Bytes encoding_device_, encoding_host_;
  std::vector<std::vector<float>> states_;  // by text
  std::int64_t text_numbers_ = 0;           // of all states
  // Shared: requests that are planned hold on to it, and they are copied.
  std::shared_ptr<const Decoder> decoder_;
  std::vector<DecoderSize> recorded_sizes_;
  std::vector<std::unique_ptr<wan_vae::Vae>> recorded_;  // by size
};

}  // namespace ballast::train
