#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/random.h"
#include "data/latent_cache.h"
#include "data/scan.h"
#include "data/shuffle.h"

namespace ballast::data {
namespace {

constexpr std::string_view kSampleSuffix = ".safetensors";

}  // namespace

std::string label_of(const std::string& folder, const DatasetContent& content) {
  std::filesystem::path path(folder);
  if (path.filename().empty()) path = path.parent_path();  // "clips/"
  const std::string name = path.filename().string();
  std::string label = name;
  const auto taken = [&] {
    for (const std::string& l : content.labels) {
      if (l == label) return true;
    }
    return false;
  };
  for (int n = 2; taken(); ++n) label = fmt::format("{}~{}", name, n);
  return label;
}

void shuffle_items(ItemGroup& group) {
  // By the number of items only: a folder that is moved or renamed keeps its order.
  shuffle(std::span(group.items), random_source(group.items.size(), "data.files", 0, "order"));
}

bool is_sample_folder(const std::string& folder, bool captions) {
  if (!is_folder(folder + "/latents")) return false;
  if (captions && !is_folder(folder + "/text")) return false;
  for (const std::string& name : media_names(folder)) {
    if (!name.ends_with(kSampleSuffix)) return false;
  }
  return true;
}

void scan_sample_folder(const std::string& folder, double repeats, bool shuffle,
                        const DatasetRequest& request, DatasetContent& content) {
  ItemGroup group{.folder = folder, .layout = SampleLayout::ballast, .items = {}};
  group.repeats = repeats;
  const std::string label = label_of(folder, content);
  for (const std::string& name : file_names(folder + "/latents")) {
    if (!name.ends_with(kSampleSuffix)) continue;
    const CacheFile latent = CacheFile::open(fmt::format("{}/latents/{}", folder, name));
    if (latent.metadata("kind") == "dropped") continue;
    const LatentTensors tensors = find_latent(latent, group.layout, request.needs);
    if (!request.needs.pixels) {
      const CacheFile text = CacheFile::open(fmt::format("{}/text/{}", folder, name));
      find_text(text, group.layout, request.needs);
    }
    const std::string_view id =
        std::string_view(name).substr(0, name.size() - kSampleSuffix.size());
    group.items.push_back({.id = fmt::format("{}/{}", label, id),
                           .latent = "latents/" + name,
                           .text = "text/" + name,
                           .shape = tensors.shape,
                           .mask = tensors.mask != nullptr});
  }
  if (shuffle) shuffle_items(group);
  if (is_file(empty_caption_path(folder))) group.empty_caption = "empty_caption.safetensors";
  content.labels.push_back(label);
  content.groups.push_back(std::move(group));
}

}  // namespace ballast::data
