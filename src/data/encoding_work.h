#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/bucket_sizes.h"
#include "data/dataset.h"
#include "data/dataset_options.h"
#include "data/latent_cache.h"
#include "data/sample_layout.h"
#include "io/file_source.h"

namespace ballast::data {

// What of a dataset is not encoded yet, found by the scans that training opens it with.

// The items of one directory: by which rules they are cut and where their files go.
struct EncodingSet {
  SampleLayout layout = SampleLayout::ballast;
  std::string media, cache;  // folders
  BucketRules rules = {};    // layout ballast
  std::string clip_mode = {};
  MusubiDataset musubi = {};  // layout musubi
};

// A caption whose rows are missing.
struct TextWork {
  std::uint32_t set = 0;
  std::string name = {};  // of the file below the cache, without .safetensors
  std::string caption = {};
};

// A media file of which at least one latent is missing or which was never looked into.
struct MediaWork {
  std::uint32_t set = 0;
  FileSource source = {};
  std::string name = {};     // that the names of its latents begin with
  LatentOrigin origin = {};  // without media_size and bucket
  std::string mask = {};     // path; "": none
};

struct SkippedFile {
  std::string path, reason;
};

struct EncodingWork {
  std::vector<EncodingSet> sets;
  std::vector<TextWork> texts;
  std::vector<MediaWork> media;
  std::vector<SkippedFile> skipped;  // will not be encoded
  std::int64_t texts_done = 0, media_done = 0;
  // Of latents that are there, by set: their captions may still be missing. Not all of a media file
  // with many clips.
  std::vector<std::pair<std::uint32_t, LatentShape>> latents_done;
  std::int64_t samples_done = 0;  // ready to be trained on
  // The clip of the most pixels a frame that the rules allow; none where they follow the media.
  std::optional<ClipSize> largest;
  std::vector<std::string> notes;
};

// How media of musubi-tuner's datasets are looked for when they are listed for encoding.
enum class MusubiMedia : std::uint8_t {
  open_all,      // each is opened when it is encoded, to count its clips
  missing_only,  // one whose clips are there counts as encoded; what is not there is left alone
  none,
};

struct EncodingSearch {
  DatasetRequest request = {};
  bool regenerate = false;  // as if nothing were there
  MusubiMedia musubi = MusubiMedia::open_all;
};
// Fails as open_dataset() does where the dataset cannot be read.
EncodingWork find_encoding_work(const EncodingSearch& search);

// How a latent that was made from `origin` stands in the cache; `fault` is empty where it is fit
// for use.
struct LatentState {
  std::string fault;
  LatentShape shape = {};
  bool mask = false;
};
LatentState look_at_latent(const std::string& cache, const LatentOrigin& origin,
                           const DatasetRequest& request);

}  // namespace ballast::data
