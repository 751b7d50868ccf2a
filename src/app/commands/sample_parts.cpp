#include "app/commands/sample_parts.h"

#include "core/progress.h"

namespace ballast {

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

bool names_images(const std::string& path) { return !path.ends_with(".safetensors"); }

}  // namespace ballast
