#include <algorithm>
#include <array>
#include <cmath>

#include "data/dataset_options.h"

namespace ballast::data {
namespace {

constexpr std::size_t kUsualResolutions = 3;
constexpr std::int64_t kMaxShuffles = 10'000;
constexpr double kMaxRepeats = 1e9;

constexpr std::array<IgnoredKey, 6> kIgnored = {{
    {"caption_extension", "captions are .txt files or captions.json, whatever this says"},
    {"video_extensions", "every file that is no caption is taken as media"},
    {"center_crop", "clips are always scaled to cover the bucket and cut around the middle"},
    {"random_flip", "clips are never flipped: their latents are cached"},
    {"online_captions", "captions are read when text is encoded, the cache follows them"},
    {"control_path", "only edit models use it"},
}};

// A key of a directory, or else of the whole file.
class Layered {
 public:
  Layered(const TomlTable& root, const TomlTable& directory) : root_(root), directory_(directory) {}

  // Both are asked, so that a key that a directory overrides still counts as known.
  template <class Ask>
  auto first(std::string_view key, Ask&& ask) const {
    auto outer = ask(root_);
    auto inner = ask(directory_);
    return directory_.has(key) ? inner : outer;
  }
  const TomlTable& where(std::string_view key) const {
    return directory_.has(key) ? directory_ : root_;
  }
  bool has(std::string_view key) const { return directory_.has(key) || root_.has(key); }

  std::vector<std::vector<double>> rows(std::string_view key) const {
    return first(key, [&](const TomlTable& t) { return t.number_rows(key); });
  }
  double number(std::string_view key, double otherwise) const {
    return first(key, [&](const TomlTable& t) { return t.number(key); }).value_or(otherwise);
  }
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const {
    return first(key, [&](const TomlTable& t) { return t.integer(key); }).value_or(otherwise);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    return first(key, [&](const TomlTable& t) { return t.boolean(key); }).value_or(otherwise);
  }
  std::string string(std::string_view key, std::string_view otherwise) const {
    return first(key, [&](const TomlTable& t) { return t.string(key); })
        .value_or(std::string(otherwise));
  }

 private:
  const TomlTable& root_;
  const TomlTable& directory_;
};

// A number, or the function of a [w, h] pair.
template <class OfPair>
std::vector<double> numbers_or_pairs(const Layered& keys, std::string_view key, OfPair&& of_pair) {
  std::vector<double> values;
  for (const std::vector<double>& row : keys.rows(key)) {
    if (row.size() == 1) {
      values.push_back(row[0]);
    } else if (row.size() == 2 && row[0] > 0 && row[1] > 0) {
      values.push_back(of_pair(row[0], row[1]));
    } else {
      keys.where(key).fail_at(key, "expected numbers or [width, height] pairs");
    }
  }
  return values;
}

// Directories share the keys of the whole file: what is said of them is said once.
void note_once(std::vector<std::string>& notes, std::string note) {
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(std::move(note));
}

void note_unused(const Layered& keys, std::initializer_list<const char*> names, const char* why,
                 std::vector<std::string>& notes) {
  for (const char* const name : names) {
    if (!keys.has(name)) continue;
    note_once(notes, fmt::format("{} (line {}): {}", name, keys.where(name).line_of(name), why));
  }
}

std::vector<double> read_ratios(const Layered& keys, std::vector<std::string>& notes) {
  std::vector<double> listed =
      numbers_or_pairs(keys, "ar_buckets", [](double w, double h) { return w / h; });
  const double min = keys.number("min_ar", 0), max = keys.number("max_ar", 0);
  const std::int64_t count = keys.integer("num_ar_buckets", 0);
  const bool enabled = keys.boolean("enable_ar_bucket", false);
  if (keys.has("size_buckets")) return {1};
  if (!enabled) {
    note_unused(keys, {"ar_buckets", "min_ar", "max_ar", "num_ar_buckets"},
                "has no effect without enable_ar_bucket = true, clips become squares", notes);
    return {1};
  }
  if (!listed.empty()) {
    note_unused(keys, {"min_ar", "max_ar", "num_ar_buckets"}, "ar_buckets lists the ratios", notes);
    return listed;
  }
  if (min > 0 && max > 0 && count > 0) return geometric_ratios(min, max, count);
  keys.where("enable_ar_bucket")
      .fail_at("enable_ar_bucket",
               "is on, which takes ar_buckets, or min_ar, max_ar and "
               "num_ar_buckets, all positive");
}

std::vector<ClipSize> read_sizes(const Layered& keys) {
  std::vector<ClipSize> sizes;
  for (const std::vector<double>& row : keys.rows("size_buckets")) {
    const bool whole = row.size() == 3 && std::all_of(row.begin(), row.end(), [](double v) {
                         return v >= 1 && v < 1e9 && v == std::floor(v);
                       });
    if (!whole)
      keys.where("size_buckets").fail_at("size_buckets", "expected [width, height, frames]");
    sizes.push_back({static_cast<std::int64_t>(row[0]), static_cast<std::int64_t>(row[1]),
                     static_cast<std::int64_t>(row[2])});
  }
  return sizes;
}

BucketRules read_rules(const Layered& keys, const ModelNeeds& needs, bool many,
                       std::vector<std::string>& notes) {
  BucketRules rules;
  rules.multiple = needs.pixel_multiple;
  rules.fps = needs.fps;
  rules.ratios = read_ratios(keys, notes);
  rules.resolutions =
      numbers_or_pairs(keys, "resolutions", [](double w, double h) { return std::sqrt(w * h); });
  const auto frames =
      keys.first("frame_buckets", [](const TomlTable& t) { return t.integers("frame_buckets"); });
  if (!frames.empty()) rules.frames = frames;
  rules.sizes = read_sizes(keys);
  if (rules.resolutions.size() > kUsualResolutions && rules.sizes.empty() && !many) {
    keys.where("resolutions")
        .fail_at(
            "resolutions",
            fmt::format("{} resolutions: every item is used at each of them, so the data set "
                        "is multiplied by that",
                        rules.resolutions.size()),
            {{"fewer resolutions", "one is usual"}, {"--i_know_what_i_am_doing", "accepts them"}});
  }
  if (!rules.sizes.empty()) {
    note_unused(keys,
                {"resolutions", "enable_ar_bucket", "ar_buckets", "min_ar", "max_ar",
                 "num_ar_buckets", "frame_buckets"},
                "has no effect, size_buckets replace it", notes);
  }
  try {
    return checked(std::move(rules));
  } catch (const Error& e) {
    keys.where(keys.has("size_buckets") ? "size_buckets" : "resolutions")
        .fail_at(keys.has("size_buckets") ? "size_buckets" : "resolutions", e.what());
  }
}

CaptionOptions read_captions(const Layered& keys) {
  CaptionOptions c;
  c.prefix = keys.string("caption_prefix", "");
  c.delimiter = keys.string("cache_shuffle_delimiter", ", ");
  c.skip_empty = keys.boolean("skip_empty_caption", true);
  c.shuffles = keys.integer("cache_shuffle_num", 0);
  if (keys.boolean("shuffle_tags", false) && c.shuffles == 0) c.shuffles = 1;
  if (c.shuffles < 0 || c.shuffles > kMaxShuffles) {
    keys.where("cache_shuffle_num")
        .fail_at("cache_shuffle_num", fmt::format("expected 0 to {}", kMaxShuffles));
  }
  return c;
}

MediaDirectory read_directory(const TomlTable& root, const TomlTable& table,
                              const ModelNeeds& needs, bool many, std::vector<std::string>& notes) {
  const Layered keys(root, table);
  MediaDirectory d;
  d.path = resolve_path(table.require_string("path"), table.path());
  d.line = table.line();
  d.mask_path = table.string("mask_path", "");
  d.default_mask = table.string("default_mask_file", "");
  if (!d.mask_path.empty()) d.mask_path = resolve_path(d.mask_path, table.path());
  if (!d.default_mask.empty()) d.default_mask = resolve_path(d.default_mask, table.path());
  d.rules = read_rules(keys, needs, many, notes);
  d.captions = read_captions(keys);
  d.shuffle_files = keys.boolean("shuffle_metadata", true);
  d.num_repeats = keys.number("num_repeats", 1);
  if (!(d.num_repeats > 0 && d.num_repeats <= kMaxRepeats)) {
    keys.where("num_repeats").fail_at("num_repeats", "expected a number above 0");
  }
  table.finish(kIgnored, notes);
  return d;
}

}  // namespace

DiffusionPipeDataset read_diffusion_pipe_dataset(const TomlTable& root, const ModelNeeds& needs,
                                                 bool allow_many_resolutions,
                                                 std::vector<std::string>& notes) {
  DiffusionPipeDataset dataset;
  dataset.clip_mode = root.string("video_clip_mode", "");
  if (!dataset.clip_mode.empty()) {
    if (dataset.clip_mode != "single_beginning" && dataset.clip_mode != "single_middle") {
      root.fail_at("video_clip_mode", "expected 'single_beginning' or 'single_middle'");
    }
    notes.push_back(
        fmt::format("video_clip_mode (line {}): honoured here too; diffusion-pipe reads it only in "
                    "the main file",
                    root.line_of("video_clip_mode")));
  }
  dataset.subsample_ratio = root.number("subsample_ratio", 1);
  if (!(dataset.subsample_ratio > 0 && dataset.subsample_ratio <= 1)) {
    root.fail_at("subsample_ratio", "expected a number above 0 and at most 1");
  }
  for (const TomlTable& table : root.tables("directory")) {
    dataset.directories.push_back(
        read_directory(root, table, needs, allow_many_resolutions, notes));
  }
  if (dataset.directories.empty()) root.fail_at("directory", "has no entry");
  root.finish(kIgnored, notes);
  return dataset;
}

}  // namespace ballast::data
