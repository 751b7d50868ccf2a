#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/bucket_sizes.h"
#include "data/dataset.h"
#include "data/media_folder.h"
#include "data/musubi_clips.h"
#include "io/toml_table.h"

namespace ballast::data {

// What dataset files say, key by key. Readers fail with ErrorCode::input, line and key on values of
// the wrong kind and on unknown keys; a key without effect becomes a note.

// A [[directory]] of diffusion-pipe, the top-level keys already merged in.
struct MediaDirectory {
  std::string path;
  int line = 0;
  BucketRules rules;  // without resolutions and sizes where the file has none
  std::string mask_path, default_mask;
  CaptionOptions captions;
  double num_repeats = 1;
  bool shuffle_files = true;  // decides which part of a directory num_repeats < 1 uses
};

struct DiffusionPipeDataset {
  std::vector<MediaDirectory> directories;
  double subsample_ratio = 1;  // of an epoch's steps
  std::string clip_mode;       // empty: not said here
};

// `needs` gives frame rate and size multiple.
DiffusionPipeDataset read_diffusion_pipe_dataset(const TomlTable& root, const ModelNeeds& needs,
                                                 bool allow_many_resolutions,
                                                 std::vector<std::string>& notes);

// One of musubi-tuner's [[datasets]], [general] already merged in.
struct MusubiDataset {
  int line = 0;
  bool video = false;
  std::string media;  // a folder, or a file of JSON lines
  std::string cache;  // folder
  PixelSize resolution{960, 544};
  bool enable_bucket = false, no_upscale = false;
  std::int64_t batch_size = 1, num_repeats = 1;
  std::string caption_extension;
  std::string control;
  ClipRules clips;
  std::optional<double> source_fps;
};

std::vector<MusubiDataset> read_musubi_datasets(const TomlTable& root,
                                                std::vector<std::string>& notes);

enum class DatasetFileKind : std::uint8_t { diffusion_pipe, musubi };
// By [[directory]] or [[datasets]]; fails where there is neither or both.
DatasetFileKind recognise_dataset(const TomlTable& root);

// As written where that exists, else below the folder of the file that names it where that does.
std::string resolve_path(const std::string& written, const std::string& named_in);

}  // namespace ballast::data
