#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/clip_file.h"
#include "infer/condition_image.h"
#include "infer/video_codec.h"
#include "io/media_reader.h"
#include "models/wan/config.h"

namespace ballast {

// What surrounds the denoising loop: each part is opened and planned before any of them runs, loads
// its weights when it runs and gives their memory back.

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

// Latents to files of pictures. on_frames: after each chunk of them.
void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const infer::ClipFile& file,
                 const std::function<void()>& on_frames);

// Whether decoded pictures are wanted, by the ending of the name; a .safetensors holds the latent.
bool names_pictures(const std::string& path);

}  // namespace ballast
