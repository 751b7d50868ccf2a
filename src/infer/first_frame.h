#pragma once

#include <vector>

#include "infer/condition_image.h"
#include "infer/video_codec.h"
#include "io/media_reader.h"
#include "models/wan/config.h"

namespace ballast::infer {

// The image that a clip begins with.
struct FirstFrame {
  RgbImage image;

  ImageView view() const;
};

// Whether a clip of this model can begin with one: I2V models see it in channels of their own,
// TI2V models (those of the VAE of 16 pixels) hold it as the first frame.
bool takes_first_frame(const wan::Config& model);

// The size of a clip that begins with it, of about `area` pixels.
PixelSize clip_size(const FirstFrame& image, const wan::Config& model, std::int64_t area);

// Its normalised latent: of the whole clip (I2V, `frames` of them, all but the first grey), else of
// the one frame.
std::vector<float> encode_first_frame(VideoEncoder& encoder, const FirstFrame& image,
                                      const wan::Config& model, PixelSize size,
                                      std::int64_t frames);

}  // namespace ballast::infer
