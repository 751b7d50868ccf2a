#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/clip_file.h"
#include "infer/first_frame.h"
#include "infer/video_codec.h"
#include "models/wan/config.h"

namespace ballast {

// What surrounds the denoising loop: each part is opened and planned before any of them runs, loads
// its weights when it runs and gives their memory back.

// Latents to files of images. on_frames: after each chunk of them.
void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const infer::ClipFile& file,
                 const std::function<void()>& on_frames);

// Whether decoded images are wanted, by the ending of the name; a .safetensors holds the latent.
bool names_images(const std::string& path);

}  // namespace ballast
