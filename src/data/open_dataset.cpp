#include <algorithm>
#include <filesystem>
#include <span>

#include "core/error.h"
#include "core/path_kind.h"
#include "data/cached_dataset.h"
#include "data/dataset.h"
#include "data/dataset_options.h"
#include "data/encoding_work.h"
#include "data/scan.h"
#include "io/toml_table.h"

namespace ballast::data {
namespace {

[[noreturn]] void fail_pixels(const std::string& path, std::string_view what) {
  fail(ErrorCode::input,
       fmt::format("{} is {}: an autoencoder is trained on the clips of diffusion-pipe's dataset "
                   "files",
                   path, what),
       {{"[[directory]] path = 'FOLDER' in a dataset file", "clips of a folder, or of its cache"}});
}

std::string right_path(std::string_view what) {
  return fmt::format(
      "the path of the {}: relative ones start at the current folder, then at the file's", what);
}

// Without it nothing is known of the samples: a plan cannot be made either.
void require_path(const DatasetRequest& request) {
  std::error_code error;
  if (std::filesystem::exists(request.path, error)) return;
  if (!error) error = std::make_error_code(std::errc::no_such_file_or_directory);
  fail(ErrorCode::io,
       fmt::format("{}{}{}: {}", request.named, request.named.empty() ? "" : ": ",
                   printable(request.path), error.message()),
       {{right_path("dataset's file"), "it says which samples there are"}});
}

// A plan is made before the data is in its place; training is not started without it.
bool folder_missing(const std::string& folder, int line, const DatasetRequest& request,
                    DatasetContent& content) {
  if (is_folder(folder)) return false;
  const bool there = path_exists(folder);
  const std::string message =
      fmt::format("{} line {}: {}{}{}", request.path, line, there ? "" : "there is no folder ",
                  folder, there ? " is no folder" : "");
  if (!request.planning) {
    fail(ErrorCode::input, message, {{right_path("folder"), "training reads what lies there"}});
  }
  content.notes.push_back(message);
  content.nothing_cached_in = folder;
  return true;
}

// The VAE takes 4n + 1 frames: a bucket of 24 has clips of 21.
void note_unused_frames(std::span<const std::int64_t> wanted, DatasetContent& content) {
  for (const std::int64_t frames : wanted) {
    const std::int64_t used = clip_length(frames);
    if (used == frames) continue;
    std::string note = fmt::format("{} frames: {} used (4n + 1)", frames, used);
    if (std::ranges::find(content.notes, note) == content.notes.end()) {
      content.notes.push_back(std::move(note));
    }
  }
}

void note_unused_frames(const BucketRules& rules, DatasetContent& content) {
  if (rules.sizes.empty()) return note_unused_frames(rules.frames, content);
  for (const ClipSize& s : rules.sizes) note_unused_frames(std::span(&s.frames, 1), content);
}

void note_unused_frames(const MusubiDataset& d, DatasetContent& content) {
  if (!d.video) return;
  if (d.clips.extraction == FrameExtraction::full) {
    return note_unused_frames(std::span(&d.clips.max_frames, 1), content);
  }
  note_unused_frames(d.clips.target_frames, content);
}

void add_allowed(const BucketRules& rules, const DatasetRequest& request, DatasetContent& content) {
  for (const ClipSize& b : all_buckets(rules)) {
    const LatentShape shape = latent_shape(request.needs, b.width, b.height, b.frames);
    content.allowed.push_back(
        {.shape = shape, .micro_batch = micro_batch_of(request, shape), .items = 0});
  }
}

void scan(const DiffusionPipeDataset& dataset, const DatasetRequest& request,
          DatasetContent& content) {
  content.subsample = dataset.subsample_ratio;
  const std::string& clip_mode = dataset.clip_mode.empty() ? request.clip_mode : dataset.clip_mode;
  for (MediaDirectory d : dataset.directories) {
    if (request.frame_buckets) d.rules.frames = *request.frame_buckets;
    if (request.resolution) d.rules.resolutions = {*request.resolution};
    if (request.frame_buckets || request.resolution) d.rules = checked(std::move(d.rules));
    if (is_sample_folder(d.path, !request.needs.pixels)) {
      scan_sample_folder(d.path, d.num_repeats, d.shuffle_files, request, content);
      continue;
    }
    if (d.rules.resolutions.empty() && d.rules.sizes.empty()) {
      fail(ErrorCode::input,
           "{} line {}: the directory needs resolutions or size_buckets, of its own or "
           "at the top of the file",
           request.path, d.line);
    }
    note_unused_frames(d.rules, content);
    add_allowed(d.rules, request, content);
    if (folder_missing(d.path, d.line, request, content)) continue;
    scan_media_folder(d, clip_mode, request, content);
  }
}

void scan(const std::vector<MusubiDataset>& datasets, const DatasetRequest& request,
          DatasetContent& content) {
  content.rule = BatchRule::partial_steps;
  for (const MusubiDataset& d : datasets) {
    note_unused_frames(d, content);
    add_musubi_buckets(d, request, content);
    if (content.work != nullptr) {
      if (content.musubi != MusubiMedia::none) list_musubi_work(d, request, content);
      continue;
    }
    if (!folder_missing(d.cache, d.line, request, content)) scan_musubi(d, request, content);
  }
  if (request.accumulation > 1) {
    content.notes.push_back(
        "the micro-batches of a step are of one bucket; musubi-tuner mixes "
        "buckets when it accumulates");
  }
}

void scan_file(const DatasetRequest& request, DatasetContent& content) {
  const TomlFile file = TomlFile::read(request.path);
  const TomlTable root = file.root();
  if (recognise_dataset(root) == DatasetFileKind::musubi) {
    if (request.needs.pixels) fail_pixels(request.path, "a dataset of musubi-tuner");
    scan(read_musubi_datasets(root, content.notes), request, content);
  } else {
    scan(read_diffusion_pipe_dataset(root, request.needs, request.allow_many_resolutions,
                                     content.notes),
         request, content);
  }
}

void scan_path(const DatasetRequest& request, DatasetContent& content) {
  require_path(request);
  content.source = request.path;
  if (!is_folder(request.path)) {
    scan_file(request, content);
  } else if (is_sample_folder(request.path, !request.needs.pixels)) {
    scan_sample_folder(request.path, 1, false, request, content);
  } else if (request.needs.pixels) {
    fail_pixels(request.path, "no cache of clips");
  } else if (content.work != nullptr) {
    list_embedding_pair_work(request.path, request, content);
  } else {
    content.rule = BatchRule::partial_steps;
    scan_embedding_pairs(request.path, request, content);
  }
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DatasetRequest& request) {
  DatasetContent content;
  scan_path(request, content);
  return std::make_unique<CachedDataset>(std::move(content), request);
}

EncodingWork find_encoding_work(const EncodingSearch& search) {
  EncodingWork work;
  DatasetContent content;
  content.work = &work;
  content.regenerate = search.regenerate;
  content.musubi = search.musubi;
  scan_path(search.request, content);
  const std::int64_t stride = search.request.needs.spatial_stride;
  for (const Bucket& b : content.allowed) {
    const ClipSize clip{b.shape.width * stride, b.shape.height * stride,
                        search.request.needs.temporal_stride * (b.shape.frames - 1) + 1};
    const auto cost = [](const ClipSize& c) { return std::pair(c.width * c.height, c.frames); };
    if (!work.largest || cost(clip) > cost(*work.largest)) work.largest = clip;
  }
  for (const ItemGroup& g : content.groups) work.samples_done += std::ssize(g.items);
  work.notes = std::move(content.notes);
  return work;
}

}  // namespace ballast::data
