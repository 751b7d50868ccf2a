#include <algorithm>

#include "core/error.h"
#include "data/scan.h"

namespace ballast::data {
namespace {

constexpr std::string_view kMusubiLatentSuffix = "_wan.safetensors";
constexpr std::string_view kTextSuffix = "_wan_te.safetensors";

bool digits(std::string_view text, char between, int least) {
  const std::size_t at = text.find(between);
  if (at == std::string_view::npos) return false;
  const auto all = [](std::string_view part, int n) {
    return static_cast<int>(part.size()) >= n &&
           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return all(text.substr(0, at), least) && all(text.substr(at + 1), 3);
}

}  // namespace

// Takes "_1234x0567" (and before it "_00000-081" of a video) off the end; empty when it is not
// there.
std::string_view musubi_latent_stem(std::string_view name, bool video) {
  if (!name.ends_with(kMusubiLatentSuffix)) return {};
  name.remove_suffix(kMusubiLatentSuffix.size());
  const auto take = [&](char between, int least) {
    const std::size_t at = name.rfind('_');
    if (at == std::string_view::npos || !digits(name.substr(at + 1), between, least)) return false;
    name = name.substr(0, at);
    return true;
  };
  if (!take('x', 4)) return {};
  if (video && !take('-', 5)) return {};
  return name;
}

std::string musubi_unfinished_mark(const std::string& cache, std::string_view stem) {
  return fmt::format("{}/.{}.unfinished", cache, stem);
}

void add_musubi_buckets(const MusubiDataset& d, const DatasetRequest& request,
                        DatasetContent& content) {
  std::int64_t frames = 1;
  if (d.video) {
    frames = d.clips.extraction == FrameExtraction::full
                 ? clip_length(d.clips.max_frames)
                 : musubi_target_frames(d.clips.target_frames).back();
  }
  // Videos are always put into buckets, whatever the file says.
  for (const PixelSize& b : musubi_buckets(d.resolution, d.enable_bucket || d.video)) {
    content.allowed.push_back({.shape = latent_shape(request.needs, b.width, b.height, frames),
                               .micro_batch = d.batch_size,
                               .items = 0});
  }
}

void scan_musubi(const MusubiDataset& d, const DatasetRequest& request, DatasetContent& content) {
  ItemGroup group{.folder = d.cache, .layout = SampleLayout::musubi, .items = {}};
  group.repeats = static_cast<double>(d.num_repeats);
  group.batch = d.batch_size;
  group.apart = true;
  const std::string label = label_of(d.cache, content);
  std::int64_t without_text = 0;
  const std::vector<std::string> names = file_names(d.cache);
  for (const std::string& name : names) {
    const std::string_view stem = musubi_latent_stem(name, d.video);
    if (stem.empty()) continue;  // of the other kind: a dataset of images and one of videos
    const std::string text = fmt::format("{}{}", stem, kTextSuffix);
    if (!std::binary_search(names.begin(), names.end(), text)) {
      ++without_text;
      continue;
    }
    const CacheFile latent = CacheFile::open(fmt::format("{}/{}", d.cache, name));
    const LatentTensors tensors = find_latent(latent, group.layout, request.needs);
    find_text(CacheFile::open(fmt::format("{}/{}", d.cache, text)), group.layout, request.needs);
    group.items.push_back({.id = fmt::format("{}/{}", label,
                                             std::string_view(name).substr(
                                                 0, name.size() - kMusubiLatentSuffix.size())),
                           .latent = name,
                           .text = text,
                           .shape = tensors.shape});
  }
  if (without_text > 0) {
    content.notes.push_back(fmt::format(
        "{}: {} cached latents are left out: their text is not cached", d.cache, without_text));
  }
  if (group.items.empty()) {
    // Only the caches are looked at, as musubi-tuner does; how many items there are is not known.
    const std::string message = fmt::format(
        "{} line {}: its clips are not cached yet: {} holds no pair of NAME{} and NAME{}",
        request.path, d.line, d.cache, kMusubiLatentSuffix, kTextSuffix);
    if (!request.planning) fail_not_cached(message);
    content.notes.push_back(message);
    content.nothing_cached_in = d.cache;
  }
  content.labels.push_back(label);
  content.groups.push_back(std::move(group));
}

}  // namespace ballast::data
