#include <algorithm>
#include <array>

#include "data/dataset_options.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kLargestMusubiSide = 65'536;
constexpr std::int64_t kMaxMusubiFrames = 1 << 20;
constexpr std::int64_t kMax = 1'000'000'000;

constexpr std::array<IgnoredKey, 7> kIgnoredOfMusubi = {{
    {"multiple_target", "only edit models use it"},
    {"no_resize_control", "only edit models use it"},
    {"control_resolution", "only edit models use it"},
    {"fp_latent_window_size", "only FramePack uses it"},
    {"fp_1f_clean_indices", "only FramePack uses it"},
    {"fp_1f_target_index", "only FramePack uses it"},
    {"fp_1f_no_post", "only FramePack uses it"},
}};

std::int64_t ranged(const TomlTable& t, std::string_view key, std::int64_t value, std::int64_t low,
                    std::int64_t high) {
  if (value >= low && value <= high) return value;
  t.fail_at(key, fmt::format("expected {} to {}, found {}", low, high, value));
}

// The keys that may stand in [general] and in each dataset; those given replace what is in `d`.
void read_common(const TomlTable& t, MusubiDataset& d) {
  if (const TomlValue* v = t.find("resolution")) {
    const bool pair = v->kind == TomlValue::Kind::array;
    const std::vector<std::int64_t> sides =
        pair ? t.integers("resolution") : std::vector{*t.integer("resolution")};
    if (sides.size() != (pair ? 2u : 1u))
      t.fail_at("resolution", "expected a side or [width, height]");
    d.resolution = {ranged(t, "resolution", sides.front(), kMusubiStep, kLargestMusubiSide),
                    ranged(t, "resolution", sides.back(), kMusubiStep, kLargestMusubiSide)};
  }
  d.caption_extension = t.string("caption_extension", d.caption_extension);
  d.batch_size = ranged(t, "batch_size", t.integer("batch_size", d.batch_size), 1, kMax);
  d.num_repeats = ranged(t, "num_repeats", t.integer("num_repeats", d.num_repeats), 1, kMax);
  d.enable_bucket = t.boolean("enable_bucket", d.enable_bucket);
  d.no_upscale = t.boolean("bucket_no_upscale", d.no_upscale);
}

void read_clips(const TomlTable& t, MusubiDataset& d) {
  if (const auto frames = t.integers("target_frames"); t.has("target_frames")) {
    if (frames.empty()) t.fail_at("target_frames", "is empty");
    for (const std::int64_t f : frames) ranged(t, "target_frames", f, 1, kMaxMusubiFrames);
    d.clips.target_frames = frames;
  }
  if (const auto mode = t.string("frame_extraction")) {
    const auto found = find_frame_extraction(*mode);
    if (!found) t.fail_at("frame_extraction", "expected head, chunk, slide, uniform or full");
    d.clips.extraction = *found;
  }
  d.clips.stride =
      ranged(t, "frame_stride", t.integer("frame_stride", d.clips.stride), 1, kMaxMusubiFrames);
  d.clips.samples =
      ranged(t, "frame_sample", t.integer("frame_sample", d.clips.samples), 1, kMaxMusubiFrames);
  d.clips.max_frames =
      ranged(t, "max_frames", t.integer("max_frames", d.clips.max_frames), 1, kMaxMusubiFrames);
  if (const TomlValue* v = t.find("source_fps")) {
    if (v->kind != TomlValue::Kind::real) {
      t.fail_at("source_fps", "must be written with a point, for example 30.0");
    }
    d.source_fps = t.number("source_fps");
    if (!(*d.source_fps > 0)) t.fail_at("source_fps", "expected a number above 0");
  }
}

void read_places(const TomlTable& t, MusubiDataset& d) {
  constexpr std::array<std::string_view, 4> kPlaces = {"image_directory", "image_jsonl_file",
                                                       "video_directory", "video_jsonl_file"};
  std::string_view chosen;
  for (const std::string_view key : kPlaces) {
    const auto value = t.string(key);
    if (!value) continue;
    if (!chosen.empty())
      t.fail_at(key, fmt::format("stands beside {}; one of them is used", chosen));
    chosen = key;
    d.media = resolve_path(*value, t.path());
  }
  if (chosen.empty()) {
    fail(ErrorCode::input, "{} line {}: [[datasets]] needs one of {}", t.path(), t.line(),
         "image_directory, image_jsonl_file, video_directory, "
         "video_jsonl_file");
  }
  d.video = chosen.starts_with("video");
  const auto cache = t.string("cache_directory");
  if (!cache && chosen.ends_with("jsonl_file")) {
    t.fail_at(chosen, "needs a cache_directory beside it");
  }
  d.cache = cache ? resolve_path(*cache, t.path()) : d.media;
  d.control = t.string("control_directory", "");
}

}  // namespace

std::vector<MusubiDataset> read_musubi_datasets(const TomlTable& root,
                                                std::vector<std::string>& notes) {
  MusubiDataset general;
  if (const auto table = root.table("general")) {
    read_common(*table, general);
    read_clips(*table, general);
    table->finish(kIgnoredOfMusubi, notes);
  }
  std::vector<MusubiDataset> all;
  for (const TomlTable& table : root.tables("datasets")) {
    MusubiDataset d = general;
    d.line = table.line();
    read_places(table, d);
    read_common(table, d);
    if (d.video) read_clips(table, d);
    table.finish(kIgnoredOfMusubi, notes);
    const auto twin = std::find_if(all.begin(), all.end(),
                                   [&](const MusubiDataset& o) { return o.cache == d.cache; });
    if (twin != all.end()) {
      table.fail_at(table.has("cache_directory") ? "cache_directory" : "path",
                    fmt::format("{} is the cache of the dataset on line {} too; each needs its own",
                                d.cache, twin->line));
    }
    if (!d.control.empty()) {
      notes.push_back(fmt::format("control_directory (line {}): only Fun-Control models use it",
                                  table.line_of("control_directory")));
    }
    all.push_back(std::move(d));
  }
  if (all.empty()) root.fail_at("datasets", "has no entry");
  root.finish();
  return all;
}

}  // namespace ballast::data
