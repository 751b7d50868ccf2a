#pragma once

#include <functional>
#include <memory>
#include <string>

#include "app/commands/cache_inputs.h"
#include "app/planning.h"
#include "data/dataset_encoding.h"
#include "train/config/config.h"

namespace ballast {

// Encodes what the datasets of a run lack, in steps, so that `train` can plan its own run between
// them. Of this program's flags --threads and --json are used.
class DatasetCaching {
 public:
  // Both live longer.
  DatasetCaching(const train::TrainConfig& config, const OwnFlags& own, CacheUse use);
  ~DatasetCaching();

  bool needed() const;  // something is not encoded yet
  bool reads_media() const;
  // Prints the plans of both encoders; ErrorCode::refused where one does not fit.
  void plan();
  // What the headers of media that are not encoded yet say of the latents to come. Fails with
  // ErrorCode::input where no clip would be left to train on.
  train::ComingData coming();
  // Captions, then media, each with an encoder that is gone afterwards. stop is asked after every
  // call of the text encoder and after every media file; false: it said yes.
  bool encode(const std::function<bool()>& stop = {});
  // Prints what was done and what was left out; fails as require_clips() does.
  void finish() const;
  std::string progress() const;  // "12 of 40 captions and 0 clips of 40 media files are encoded"

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

// `ballast cache`: all of these steps.
void cache_dataset(const train::TrainConfig& config, const OwnFlags& own);

// Fails with ErrorCode::input where media were left out and no clip remains.
void require_clips(const data::EncodingReport& report);

}  // namespace ballast
