#include "infer/first_frame.h"

#include <algorithm>

#include "core/progress.h"
#include "core/to_size.h"

namespace ballast::infer {

ImageView FirstFrame::view() const {
  return {.size = {image.width, image.height}, .rgb = image.pixels};
}

bool takes_first_frame(const wan::Config& model) {
  return model.conditioning() > 0 || model.spatial_stride == 16;
}

PixelSize clip_size(const FirstFrame& image, const wan::Config& model, std::int64_t area) {
  const PixelSize size = image.view().size;
  const std::int64_t multiple = 2 * model.spatial_stride;
  return model.conditioning() > 0 ? i2v_size(size, area, multiple)
                                  : ti2v_size(size, area, multiple);
}

std::vector<float> encode_first_frame(VideoEncoder& encoder, const FirstFrame& image,
                                      const wan::Config& model, PixelSize size,
                                      std::int64_t frames) {
  const bool whole = model.conditioning() > 0;
  const std::vector<float> planes =
      whole ? i2v_frame(image.view(), size) : ti2v_frame(image.view(), size);
  const auto pixels = to_size(size.width * size.height);
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

}  // namespace ballast::infer
