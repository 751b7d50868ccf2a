#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/condition_image.h"
#include "infer/text_encoder.h"
#include "infer/video_codec.h"
#include "io/media_writer.h"
#include "models/wan/config.h"

namespace ballast {

// What surrounds the denoising loop: each part is opened and planned before any of them runs, loads
// its weights when it runs and gives their memory back.

// Prompts to text states.
class PromptPart {
 public:
  // Texts are cleaned and cut as Wan does it. Fails where the tokenizer, the encoder and the
  // transformer do not fit together.
  PromptPart(const std::string& encoder, const std::string& tokenizer,
             std::vector<std::string> texts, const wan::Config& model,
             infer::TextEncoderOptions options);

  infer::TextEncoderPlan plan() const;          // fails with ErrorCode::refused
  std::vector<std::vector<float>> run() const;  // rows of text_dim, by text
  std::size_t texts() const { return ids_.size(); }

 private:
  infer::TextEncoder encoder_;
  std::vector<std::vector<std::int32_t>> ids_;
};

// The picture that a clip begins with.
struct Picture {
  RgbImage image;
  infer::PictureView view() const;
};
// The size of a clip that begins with it, of about `area` pixels.
infer::PixelSize clip_size(const Picture& picture, const wan::Config& model, std::int64_t area);
// Its normalised latent: of the whole clip (I2V, `frames` of them, all but the first grey), else of
// the one frame.
std::vector<float> encode_picture(infer::VideoEncoder& encoder, const Picture& picture,
                                  const wan::Config& model, infer::PixelSize size,
                                  std::int64_t frames);

// Latents to files of pictures.
struct ClipFile {
  std::string path;
  double fps = 16;
  int crf = 10;
  std::string comment;
  std::string sheet;  // a contact sheet beside it; "": none
};
void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const ClipFile& file);

// Whether decoded pictures are wanted, by the ending of the name; a .safetensors holds the latent.
bool names_pictures(const std::string& path);

}  // namespace ballast
