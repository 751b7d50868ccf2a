#include "io/weight_files.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/limits.h"
#include "io/weight_index.h"
#include "memory/text_file.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr std::string_view kSafetensors = ".safetensors";
// What PyTorch files are called; looked for where there is no safetensors file.
constexpr std::string_view kTorch[] = {".pth", ".pt", ".bin"};

[[noreturn]] void refuse(const std::string& path, std::string_view rule, std::string_view what) {
  fail(ErrorCode::input, "{}: {}: {}", path, rule, what);
}

// "a, b, c and 12 more"
class NameList {
 public:
  void add(std::string_view name) {
    if (++count_ > 8) return;
    text_ += fmt::format("{}\"{}\"", count_ > 1 ? ", " : "", printable(name));
  }
  std::size_t count() const { return count_; }
  std::string text() const {
    return count_ > 8 ? fmt::format("{} and {} more", text_, count_ - 8) : text_;
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

// The names in a folder, sorted; links count as what they lead to.
std::vector<std::string> list_folder(const std::string& folder, fs::file_type type) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code dangling;
    if (it->status(dangling).type() == type) names.push_back(it->path().filename().string());
  }
  if (error) fail_io(folder, "list the folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> ending_in(std::string_view suffix, const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    if (name.ends_with(suffix) && name.front() != '.') chosen.push_back(name);
  }
  return chosen;
}

std::vector<std::string> torch_files(const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  for (const std::string_view suffix : kTorch) {
    for (std::string& name : ending_in(suffix, names)) chosen.push_back(std::move(name));
  }
  return chosen;
}

// An index of safetensors files names those alone.
bool is_shard_name(std::string_view name, std::string_view index_path) {
  if (name.ends_with(kSafetensors)) return true;
  const std::string_view stem = index_path.substr(0, index_path.size() - kIndexSuffix.size());
  return !stem.ends_with(kSafetensors) &&
         std::any_of(std::begin(kTorch), std::end(kTorch),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::string quoted(const std::vector<std::string>& names) {
  NameList list;
  for (const std::string& name : names) list.add(name);
  return list.text();
}

// A file that has two names counts once, under the first.
void drop_second_names(const std::string& folder, std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto again = [&](const std::string& other) {
      std::error_code error;
      return fs::equivalent(folder + "/" + names[i], folder + "/" + other, error);
    };
    names.erase(
        std::remove_if(names.begin() + static_cast<std::ptrdiff_t>(i) + 1, names.end(), again),
        names.end());
  }
}

}  // namespace

WeightFiles WeightFiles::open(const std::string& path, DiskMode mode) {
  WeightFiles checkpoint(path);
  if (is_folder(path)) {
    checkpoint.open_folder(path, mode);
  } else if (path.ends_with(kIndexSuffix)) {
    checkpoint.open_index(path, mode);
  } else {
    checkpoint.open_single(path, mode);
  }
  return checkpoint;
}

void WeightFiles::open_folder(const std::string& folder, DiskMode mode) {
  const std::vector<std::string> names = list_folder(folder, fs::file_type::regular);
  auto indices = ending_in(std::string(kSafetensors) + std::string(kIndexSuffix), names);
  auto singles = ending_in(kSafetensors, names);
  // Of a training checkpoint the model is one file and what the optimizer keeps another.
  if (singles.size() > 1 && std::ranges::find(names, "COMMITTED") != names.end()) {
    std::erase(singles, "state.safetensors");
  }
  drop_second_names(folder, singles);
  std::string_view kind = "safetensors";
  if (indices.empty() && singles.empty()) {
    indices = ending_in(".bin" + std::string(kIndexSuffix), names);
    singles = torch_files(names);
    kind = "PyTorch";
  }
  if (indices.size() > 1) {
    refuse(folder, "folder.ambiguous",
           fmt::format("it holds {} indices, name one of {}", indices.size(), quoted(indices)));
  }
  if (indices.size() == 1) {
    open_index(fmt::format("{}/{}", folder, indices[0]), mode);
  } else if (singles.size() == 1) {
    open_single(fmt::format("{}/{}", folder, singles[0]), mode);
  } else if (singles.size() > 1) {
    refuse(folder, "folder.ambiguous",
           fmt::format("it holds {} {} files and no index, name one of {}", singles.size(), kind,
                       quoted(singles)));
  } else {
    const auto folders = list_folder(folder, fs::file_type::directory);
    refuse(
        folder, "folder.empty",
        fmt::format("it holds no *.safetensors.index.json, no *.safetensors and no *.pth, *.pt or "
                    "*.bin; its folders: {}",
                    folders.empty() ? "none" : quoted(folders)));
  }
  find_config(folder);
}

void WeightFiles::open_single(const std::string& file_path, DiskMode mode) {
  files_.push_back(SafetensorsFile::open(file_path, mode));
  for (const SafetensorsEntry& entry : files_[0].entries()) tensors_.push_back({0, &entry});
  const auto notes = files_[0].header().notes();
  warnings_.insert(warnings_.end(), notes.begin(), notes.end());
  index_tensors();
}

void WeightFiles::open_index(const std::string& index_path, DiskMode mode) {
  const std::string text = read_text_file(index_path, limits::kIndexBytes, "index.limit: an index");
  const WeightIndex index = parse_weight_index(text, index_path);
  open_shards(index_path, index, mode);
  keep_mapped(index_path, index);
  warn_of_strays(index_path, index);
  find_config(folder_of_file(index_path));
}

void WeightFiles::open_shards(const std::string& index_path, const WeightIndex& index,
                              DiskMode mode) {
  const std::string folder = folder_of_file(index_path);
  NameList absent;  // all of them are named at once: a download may have stopped half way
  for (const std::string& shard : index.shards) {
    if (!is_shard_name(shard, index_path)) {
      refuse(index_path, "index.shard_name",
             fmt::format("shard \"{}\" is not a safetensors or PyTorch file", printable(shard)));
    }
    if (!is_file(fmt::format("{}/{}", folder, shard))) absent.add(shard);
  }
  if (absent.count() > 0) {
    refuse(index_path, "index.shard_missing",
           fmt::format("{} of {} shards are not there: {}", absent.count(), index.shards.size(),
                       absent.text()));
  }
  files_.reserve(index.shards.size());
  for (const std::string& shard : index.shards) {
    const auto number = static_cast<std::uint32_t>(files_.size());
    files_.push_back(SafetensorsFile::open(fmt::format("{}/{}", folder, shard), mode));
    for (const SafetensorsEntry& entry : files_.back().entries()) {
      tensors_.push_back({number, &entry});
    }
    if (tensors_.size() > limits::kTensors) {
      refuse(index_path, "index.limit",
             fmt::format("the shards hold more than {} tensors", limits::kTensors));
    }
  }
  index_tensors();
}

void WeightFiles::keep_mapped(const std::string& index_path, const WeightIndex& index) {
  std::vector<bool> mapped(tensors_.size());
  std::uint64_t total = 0;
  for (const auto& [name, shard] : index.weight_map) {
    const WeightTensor* found = find(name);
    if (found == nullptr || found->file != shard) {
      refuse(index_path, "index.tensor_missing",
             fmt::format("tensor \"{}\" is not in \"{}\"", printable(name),
                         printable(index.shards[shard])));
    }
    mapped[to_size(found - tensors_.data())] = true;
    total += found->entry->bytes;
  }
  if (!index.total_size) {
    warnings_.push_back(fmt::format("{}: there is no total_size", index_path));
  } else if (*index.total_size != total) {
    warnings_.push_back(fmt::format("{}: total_size is {}, the tensors have {} bytes", index_path,
                                    *index.total_size, total));
  }
  NameList unmapped;
  std::vector<WeightTensor> kept;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (mapped[i]) {
      kept.push_back(tensors_[i]);
    } else {
      unmapped.add(tensors_[i].entry->name);
    }
  }
  if (unmapped.count() == 0) return;
  warnings_.push_back(
      fmt::format("{}: {} tensors of the shards are not in the index and are left out: {}",
                  index_path, unmapped.count(), unmapped.text()));
  tensors_ = std::move(kept);
  index_tensors();
}

void WeightFiles::warn_of_strays(const std::string& index_path, const WeightIndex& index) {
  // Shards of this model begin as its index does: "model" in model.safetensors.index.json.
  std::string stem = fs::path(index_path).filename().string();
  stem.resize(std::min(stem.size() - kIndexSuffix.size(), stem.find(kSafetensors)));
  NameList strays;
  const auto names = list_folder(folder_of_file(index_path), fs::file_type::regular);
  for (const std::string& name : ending_in(kSafetensors, names)) {
    const auto used = std::find(index.shards.begin(), index.shards.end(), name);
    if (name.starts_with(stem) && used == index.shards.end()) strays.add(name);
  }
  if (strays.count() > 0) {
    warnings_.push_back(
        fmt::format("{}: files beside it that it does not mention: {}", index_path, strays.text()));
  }
}

void WeightFiles::find_config(const std::string& folder) {
  const std::string config = folder + "/config.json";
  if (is_file(config)) config_path_ = config;
}

void WeightFiles::index_tensors() {
  index_ = {};
  const auto name_at = [&](std::uint32_t i) { return tensors_[i].entry->name; };
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto twin = index_.insert(tensors_[i].entry->name, i, name_at);
    if (twin) {
      refuse(path_, "index.two_shards",
             fmt::format("tensor \"{}\" is in {} and in {}", printable(tensors_[i].entry->name),
                         files_[tensors_[*twin].file].path(), files_[tensors_[i].file].path()));
    }
  }
}

void WeightFiles::keep_part(std::string_view prefix) {
  std::vector<WeightTensor> kept;
  for (const WeightTensor& t : tensors_) {
    if (t.entry->name.starts_with(prefix)) kept.push_back(t);
  }
  std::vector<SafetensorsEntry> renamed;
  renamed.reserve(kept.size());
  for (WeightTensor& t : kept) {
    renamed.push_back(*t.entry);
    renamed.back().name.remove_prefix(prefix.size());
    t.entry = &renamed.back();
  }
  tensors_ = std::move(kept);
  renamed_ = std::move(renamed);  // moving keeps its elements where they are
  index_tensors();
}

const WeightTensor* WeightFiles::find(std::string_view name) const {
  const auto i = index_.find(name, [&](std::uint32_t n) { return tensors_[n].entry->name; });
  return i ? &tensors_[*i] : nullptr;
}

const WeightTensor& WeightFiles::get(std::string_view name) const {
  if (const WeightTensor* found = find(name)) return *found;
  refuse(path_, "st.missing",
         fmt::format("there is no tensor \"{}\" among its {}", printable(name), tensors_.size()));
}

}  // namespace ballast
