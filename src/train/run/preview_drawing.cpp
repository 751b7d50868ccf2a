// How a run draws its previews: denoising, decoding, files.

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "infer/clip_file.h"
#include "io/atomic_folder.h"
#include "io/leftovers.h"
#include "train/run/previews.h"

namespace ballast::train {
namespace {

// Of the frames that TensorBoard is given: eight of them are some hundred KB.
constexpr std::int64_t kThumbnail = 256;

}  // namespace

std::string Previews::comment(const Clip& clip, std::int64_t step) const {
  const infer::Denoising& what = clip.what;
  nlohmann::ordered_json j = {
      {"ballast.model", model_},
      {"ballast.step", std::to_string(step)},
      {"ballast.prompt", clip.asked.prompt},
      {"ballast.seed", std::to_string(clip.seed)},
      {"ballast.steps", std::to_string(what.sampler.steps)},
      {"ballast.sampler", name_of(what.sampler.solver)},
      {"ballast.shift", fmt::format("{:g}", what.sampler.shift)},
      {"ballast.guidance", fmt::format("{:g},{:g}", what.guidance[0], what.guidance[1])},
      {"ballast.frames", std::to_string(4 * (what.latent.frames - 1) + 1)}};
  if (clip.guided) j["ballast.negative_prompt"] = clip.asked.negative;
  if (!clip.asked.image.empty()) j["ballast.image"] = clip.asked.image;
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<DrawnPreview> Previews::draw(const PreviewArtist& artist, std::int64_t step,
                                         const std::string& folder) const {
  check(recorded_.size() == recorded_sizes_.size() && states_.size() == texts_.size(),
        "previews are drawn once they are recorded and their texts encoded");
  create_folders(folder);
  clean_leftovers(folder);  // of a run that was killed while it drew
  std::vector<DrawnPreview> drawn;
  for (std::size_t i = 0; i < clips_.size(); ++i) {
    const std::string name = fmt::format("step{:06}_{:02}.{}", step, i, ending_of(clips_[i].what));
    try {
      DrawnPreview one = {.number = i, .file = name, .prompt = clips_[i].asked.prompt};
      if (!draw_one(artist, clips_[i], i, folder + "/" + name, step, one.sheet)) break;
      drawn.push_back(std::move(one));
    } catch (const Error& e) {  // a full disk or NaN: the run is worth more than its images
      if (e.code() != ErrorCode::io && e.code() != ErrorCode::input) throw;
      log::warn("no preview {} after step {}: {}; training continues", i, step, e.what());
    }
  }
  return drawn;
}

bool Previews::draw_one(const PreviewArtist& artist, const Clip& clip, std::size_t number,
                        const std::string& path, std::int64_t step, EncodedImage& sheet) const {
  const std::string which = fmt::format("preview {} of {}", number + 1, clips_.size());
  infer::Denoiser denoiser(clip.what, {.runner = artist.runner,
                                       .runs = artist.dit.io().predict_passes,
                                       .use_expert = artist.use_expert});
  denoiser.begin({.prompt = states_[clip.prompt],
                  .negative = clip.guided ? std::span<const float>(states_[clip.negative])
                                          : std::span<const float>(),
                  .conditioning = clip.conditioning,
                  .first_frame = clip.first_frame,
                  .seed = clip.seed});
  {
    Progress progress(which, std::ssize(denoiser.steps()));
    while (!denoiser.done()) {
      if (artist.stop()) return false;
      denoiser.step();
      progress.add();
    }
  }
  const wan::LatentSize& z = clip.what.latent;
  const std::size_t size = find_size(recorded_sizes_, z);
  const wan_vae::Vae& vae = *recorded_[size];
  artist.runner.run(prefix_of(size) + "load");
  std::vector<float> chunk(
      to_size(infer::chunk_values(vae.job().config, z.height, z.width, z.frames > 1)));
  const std::int64_t frames = 4 * (z.frames - 1) + 1;
  infer::ClipWriter writer({.path = path,
                            .fps = fps_,
                            .comment = comment(clip, step),
                            .thumbnails = media_available() ? kThumbnail : 0,
                            .single_image = path.ends_with(".png")},
                           frames);
  Progress progress(which + ", decoding", frames);
  bool whole = true;
  infer::decode({.runner = artist.runner, .vae = vae, .chunk = chunk}, denoiser.latent(), z.frames,
                [&](const infer::DecodedFrames& f) {
                  writer.add(f);
                  progress.add(f.count);
                  whole = !artist.stop() || f.first + f.count == frames;
                  return whole;
                });
  if (!whole) return false;
  writer.finish();
  if (media_available()) {
    const RgbImage small = writer.thumbnail_sheet();
    MediaBytes png = ballast::encode_image(
        ImageCodec::png, {.width = small.width, .height = small.height}, small.pixels);
    sheet = {small.width, small.height, std::move(png)};
  }
  return true;
}

}  // namespace ballast::train
