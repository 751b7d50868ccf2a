#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/encoding_work.h"
#include "data/media_clip.h"

namespace ballast::data {

// Encodes what is missing of a dataset, file by file, each written whole or not at all. A run that
// is killed and started again loses the batch of captions or the clip it was at and ends with the
// same bytes. Captions and media are two calls, so that one encoder can go before the other comes.

// Rows of one caption, [tokens, dim].
struct TextRows {
  std::int64_t tokens = 0, dim = 0;
  std::vector<float> values = {};
};
// One answer per caption, in order.
using EncodeText = std::function<std::vector<TextRows>(std::span<const std::string> captions)>;

// Fills [count][height][width][3] with the frames from `first` on, from -1 to 1; called in order.
using FrameSource =
    std::function<void(std::int64_t first, std::int64_t count, std::span<float> to)>;
// The normalised latent [channels, 1 + (frames - 1) / 4, height / p, width / p].
using EncodeVideo = std::function<std::vector<float>(std::int64_t frames, std::int64_t height,
                                                     std::int64_t width, const FrameSource&)>;

// A media file that clips are read from.
class OpenMedia {
 public:
  virtual ~OpenMedia() = default;
  virtual const MediaInfo& info() const = 0;
  virtual void begin(ClipPlan plan) = 0;           // the clips that next() goes through
  virtual bool next() = 0;                         // false after the last
  virtual void read(std::span<float> frames) = 0;  // the next ones of the clip
};

// How media are read; read_media() is the way, tests have another.
struct MediaAccess {
  std::function<std::unique_ptr<OpenMedia>(const FileSource& source)> open;
  // As read_loss_mask() in data/clip_reader.h.
  std::function<std::vector<float>(const std::string& path, PixelSize media, PixelSize bucket,
                                   PixelSize latent)>
      mask;
};
MediaAccess read_media();

struct EncodingOptions {
  DatasetRequest request = {};
  CacheWriting writing = {.store = DType::bf16};
  std::int64_t text_batch = 1;  // captions per call
  bool regenerate = false;      // also what is there
  double max_megapixels = 0;    // of images beside which pairs stand; 0: as they are
  // Asked after every call of an encoder for captions and after every media file; true ends the
  // phase there. Empty: never.
  std::function<bool()> stop = {};
};

struct EncodingReport {
  std::int64_t texts = 0, clips = 0;              // written
  std::int64_t texts_there = 0, clips_there = 0;  // before; of media that were not opened: the file
  std::vector<SkippedFile> skipped = {};
};

// The latents that encode_media() will make, by the headers of media, and those that are there,
// each shape once; items are 0.
struct ComingClips {
  std::vector<Bucket> buckets = {};
  bool masks = false;
  std::vector<SkippedFile> skipped = {};  // media of which there will be none
  std::int64_t files = 0, values = 0;     // that will be written, with conditioning
};
ComingClips coming_clips(const EncodingWork& work, const DatasetRequest& request,
                         const MediaAccess& access);

// Adds to the report. Media that cannot be read are skipped, with the reason, and are not tried
// again until they change (where the layout can say so); a broken disk or a full one ends the run.
void encode_texts(const EncodingWork& work, const EncodingOptions& options, const EncodeText& text,
                  EncodingReport& report);
void encode_media(const EncodingWork& work, const EncodingOptions& options,
                  const EncodeVideo& video, const MediaAccess& access, EncodingReport& report);

}  // namespace ballast::data
