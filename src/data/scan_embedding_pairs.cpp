#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "data/scan.h"

namespace ballast::data {
namespace {

constexpr std::string_view kLatentSuffix = ".latent.safetensors";
constexpr std::size_t kPairFiles = 10'000'000;

// Paths below the folder, sorted. Links to folders are not followed, so a circle of them ends.
std::vector<std::string> latent_files(const std::string& folder) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error);
  if (error) fail_io(folder, "list this folder", error.value());
  std::vector<std::string> names;
  for (const std::filesystem::recursive_directory_iterator end; at != end; at.increment(error)) {
    if (error) break;
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    std::string name = at->path().lexically_relative(folder).string();
    if (!name.ends_with(kLatentSuffix) || at->path().filename().string().starts_with('.')) continue;
    names.push_back(std::move(name));
    if (names.size() > kPairFiles) {
      fail(ErrorCode::input, "{}: more than {} files", folder, kPairFiles);
    }
  }
  if (error) fail_io(folder, "list this folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void scan_embedding_pairs(const std::string& folder, const DatasetRequest& request,
                          DatasetContent& content) {
  ItemGroup group{.folder = folder, .layout = SampleLayout::embedding_pair, .items = {}};
  std::int64_t without_text = 0;
  for (const std::string& name : latent_files(folder)) {
    const std::string stem = name.substr(0, name.size() - kLatentSuffix.size());
    const std::string text = stem + ".safetensors";
    if (!is_file(fmt::format("{}/{}", folder, text))) {
      ++without_text;
      continue;
    }
    const CacheFile latent = CacheFile::open(fmt::format("{}/{}", folder, name));
    const LatentTensors tensors = find_latent(latent, group.layout, request.needs);
    find_text(CacheFile::open(fmt::format("{}/{}", folder, text)), group.layout, request.needs);
    group.items.push_back({.id = stem, .latent = name, .text = text, .shape = tensors.shape});
  }
  if (without_text > 0) {
    content.notes.push_back(
        fmt::format("{}: {} latents are left out: no X.safetensors with the text stands beside "
                    "X.latent.safetensors",
                    folder, without_text));
  }
  if (group.items.empty()) {
    fail(ErrorCode::input,
         "{}: no sample was found: expected latents/ and text/ of a cache of Ballast, "
         "or X.latent.safetensors beside X.safetensors, here or in a folder below",
         folder);
  }
  content.groups.push_back(std::move(group));
}

}  // namespace ballast::data
