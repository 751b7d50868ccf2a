#include "app/sample_parts.h"

#include <algorithm>

#include "core/progress.h"

namespace ballast {
infer::PictureView Picture::view() const {
  return {.size = {image.width, image.height}, .rgb = image.pixels};
}

infer::PixelSize clip_size(const Picture& picture, const wan::Config& model, std::int64_t area) {
  const infer::PixelSize size = picture.view().size;
  const std::int64_t multiple = 2 * model.spatial_stride;
  return model.conditioning() > 0 ? infer::i2v_size(size, area, multiple)
                                  : infer::ti2v_size(size, area, multiple);
}

std::vector<float> encode_picture(infer::VideoEncoder& encoder, const Picture& picture,
                                  const wan::Config& model, infer::PixelSize size,
                                  std::int64_t frames) {
  const bool whole = model.conditioning() > 0;
  const std::vector<float> planes =
      whole ? infer::i2v_frame(picture.view(), size) : infer::ti2v_frame(picture.view(), size);
  const auto pixels = static_cast<std::size_t>(size.width * size.height);
  Progress progress("encoding the image", whole ? frames : 1);
  return encoder.encode(whole ? frames : 1, size.height, size.width,
                        [&](std::int64_t first, std::int64_t count, std::span<float> to) {
                          std::fill(to.begin(), to.end(), 0.0f);  // grey
                          if (first == 0) {
                            for (std::size_t i = 0; i < pixels; ++i) {
                              for (std::size_t c = 0; c < 3; ++c)
                                to[3 * i + c] = planes[c * pixels + i];
                            }
                          }
                          progress.add(count);
                        });
}

void decode_clip(infer::VideoDecoder& decoder, std::span<const float> latent,
                 const wan::LatentSize& size, const infer::ClipFile& file,
                 const std::function<void()>& on_frames) {
  const std::int64_t frames = 4 * (size.frames - 1) + 1;
  infer::ClipWriter writer(file, frames);
  Progress progress("decoding", frames);
  decoder.decode(latent, size.frames, size.height, size.width, [&](const infer::DecodedFrames& f) {
    writer.add(f);
    progress.add(f.count);
    on_frames();
  });
  writer.finish();
}

bool names_pictures(const std::string& path) { return !path.ends_with(".safetensors"); }

}  // namespace ballast
