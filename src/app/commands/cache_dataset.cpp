#include "app/commands/cache_dataset.h"

#include <algorithm>

#include "app/commands/vae_training.h"
#include "app/output.h"
#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "data/cached_dataset.h"
#include "data/clean_text.h"
#include "data/media_file.h"
#include "data/tokenizer.h"
#include "infer/text_encoder.h"
#include "infer/video_codec.h"
#include "io/media_reader.h"
#include "memory/machine.h"
#include "memory/process_memory.h"
#include "report/json_text.h"
#include "train/run/device_choice.h"
#include "train/run/prepared_data.h"
#include "train/run/vocabulary.h"

namespace ballast {
namespace {

// Captions of a call where no limit is given. Every call reads the whole text encoder at least
// once, so few calls are faster; what a killed run has to do again is one call.
constexpr std::int64_t kCaptionsAtOnce = 64;

}  // namespace

class DatasetCaching::Work {
 public:
  Work(const train::TrainConfig& config, const OwnFlags& own, CacheUse use)
      : config_(config),
        own_(own),
        target_(find_target("this", config.memory)),
        budget_(train::resolve_budget(target_, config.memory)),
        in_(find_cache_inputs(config, use)) {
    options_ = {.request = in_.search.request,
                .writing = {.store = in_.store},
                .regenerate = in_.search.regenerate,
                .max_megapixels = config.caching.max_megapixels};
    texts_ = in_.texts() > 0 && !in_.text_encoder.empty();
    media_ = in_.media() > 0 && !in_.vae.empty();
  }

  bool needed() const { return in_.texts() > 0 || in_.media() > 0; }
  bool reads_media() const { return media_; }

  void plan() {
    for (const data::EncodingWork& w : in_.work) {
      for (const std::string& note : w.notes) log::info("{}", note);
      report_.skipped.insert(report_.skipped.end(), w.skipped.begin(), w.skipped.end());
    }
    const bool flow = config_.dialect == train::Dialect::flow_matching;
    if (in_.texts() > 0 && !texts_) {
      log::info("captions are not encoded: no text encoder is given (--{} FILE)",
                flow ? "checkpoint" : "t5");
    }
    if (in_.media() > 0 && !media_) {
      log::info("media are not encoded: no VAE is given (--{} FILE)",
                flow ? "vae_checkpoint" : "vae");
    }
    std::vector<PlannedStage> stages;
    if (texts_) stages.push_back(text_stage());
    if (media_) {
      if (auto stage = media_stage()) stages.push_back(std::move(*stage));
    }
    std::vector<infer::CommandPart> parts;
    for (const PlannedStage& s : stages) parts.push_back(s.part);
    const auto plans = require_plans(parts, infer::smaller_images, plan_output(own_));
    for (std::size_t i = 0; i < plans.size(); ++i) add_stage(stages[i], plans[i]);
    require_disk_space();
    show_plan();
  }

  train::ComingData coming() {
    train::ComingData all;
    data::DatasetRequest request = in_.search.request;
    request.micro_batch = train::micro_batches_of(config_);
    std::vector<data::SkippedFile> skipped;
    for (std::size_t i = 0; i < in_.work.size(); ++i) {
      data::ComingClips clips = data::coming_clips(in_.work[i], request, data::read_media());
      all.masks = all.masks || clips.masks;
      if (i > 0) {
        all.evaluation.push_back(std::move(clips.buckets));
        continue;
      }
      all.training = std::move(clips.buckets);
      skipped = std::move(clips.skipped);
    }
    // Nothing will come and nothing is there: said now, with the reasons.
    if (all.training.empty() && in_.work[0].samples_done == 0) {
      report_.skipped.insert(report_.skipped.end(), skipped.begin(), skipped.end());
      finish();
    }
    return all;
  }

  bool encode(const std::function<bool()>& stop) {
    bool stopped = false;
    options_.stop = [&] { return stopped = stopped || (stop && stop()); };
    if (texts_) encode_texts();
    for (const data::EncodingWork& w : in_.work) {
      if (!texts_) report_.texts_there += w.texts_done;
      if (!media_) report_.clips_there += w.media_done;
    }
    if (media_ && !stopped) encode_media();
    options_.stop = {};
    return !stopped;
  }

  void finish() const {
    if (own_.steps) {
      print_json_line(json(), "cache");
    } else {
      print(own_.json ? json() : summary());
    }
    require_clips(report_);
  }

  std::string progress() const {
    return fmt::format("{} of {} captions and {} clips of {} media files are encoded",
                       report_.texts, in_.texts(), report_.clips, in_.media());
  }

 private:
  // Captions or media: the work, and how it is told when there is a plan for it.
  struct PlannedStage {
    std::string what;
    std::int64_t count;
    infer::CommandPart part;
    std::function<std::string(const fit::PlannedRun&)> how;
  };

  std::vector<std::int32_t> ids_of(const data::Tokenizer& tokenizer,
                                   const std::string& caption) const {
    return tokenizer.encode(data::clean_text(caption), to_size(in_.search.request.needs.text_len));
  }

  // The search for work has looked into media, so FFmpeg's libraries are there.
  infer::TextEncoder text_encoder() const {
    return infer::TextEncoder(
        in_.text_encoder,
        {.device = target_.backend.device,
         .budget = budget_,
         .threads = own_.threads,
         .profile = target_.profile,
         .other_lines = {{"media libraries", kMediaLibraries, "FFmpeg's, from their first use on"},
                         vocabulary_}});
  }

  // For calls of captions that are all as long as the longest: smaller calls until they fit.
  PlannedStage text_stage() {
    const auto vocabulary = train::Vocabulary::open(in_.tokenizer);
    const data::Tokenizer& tokenizer = vocabulary.tokenizer;
    vocabulary_ = vocabulary.line("turns captions into tokens");
    const infer::TextEncoder encoder = text_encoder();
    const std::int64_t width = encoder.config().d_model;
    if (width != in_.search.request.needs.text_dim) {
      fail(ErrorCode::input, "{} gives rows of {} numbers, {} takes {}", in_.text_encoder, width,
           in_.model, in_.search.request.needs.text_dim);
    }
    std::int64_t longest = 1;
    for (const data::EncodingWork& w : in_.work) {
      for (const data::TextWork& t : w.texts) {
        const std::int64_t tokens = std::ssize(ids_of(tokenizer, t.caption));
        longest = std::max(longest, tokens);
        text_values_ += tokens * width;
      }
    }
    std::int64_t batch =
        std::min(config_.caching.batch_size.value_or(kCaptionsAtOnce), in_.texts());
    infer::CommandPart part;
    for (;; batch /= 2) {
      part = encoder.part(std::vector<std::int64_t>(to_size(batch), longest));
      if (batch == 1 || std::holds_alternative<fit::PlannedRun>(fit::find_plan(part.request)))
        break;
    }
    options_.text_batch = batch;
    return {"captions", in_.texts(), std::move(part), [=](const fit::PlannedRun& plan) {
              return fmt::format("{} at once, at most {} tokens; {}", batch, longest,
                                 plan.policy.name);
            }};
  }

  infer::VideoCodecOptions codec_options() const {
    const bool gpu = target_.backend.device == Device::cuda;
    return {.device = target_.backend.device,
            .dtype = gpu && config_.model.dtype != DType::f32 ? DType::bf16 : DType::f32,
            .budget = budget_,
            .threads = own_.threads,
            .other_lines = {{"media reader", reader_, "decodes and scales the next clip"}}};
  }

  // The most that any of the files takes, by their headers, and a latent.
  void plan_reader(const std::optional<data::ClipSize>& largest) {
    const data::ClipSize clip = largest.value_or(data::ClipSize{});
    for (const data::EncodingWork& w : in_.work) {
      for (const data::MediaWork& m : w.media) {
        const auto bytes = data::media_bytes(m.source, {clip.width, clip.height});
        reader_ = std::max(reader_, bytes.value_or(Bytes{}));
      }
    }
    if (!largest) return;
    const data::ModelNeeds& needs = in_.search.request.needs;
    const auto values = static_cast<std::uint64_t>(
        data::latent_shape(needs, clip.width, clip.height, clip.frames).elements());
    // The latent as it is made and as it is written, conditioning beside it.
    reader_ += Bytes{4 * values * (needs.conditioning_channels > 0 ? 5 : 3)};
  }

  // Nothing: each clip is planned by its size.
  std::optional<PlannedStage> media_stage() {
    std::optional<data::ClipSize> largest;
    for (const data::EncodingWork& w : in_.work) {
      if (w.media.empty() || !w.largest) continue;
      if (!largest || w.largest->width * w.largest->height > largest->width * largest->height) {
        largest = w.largest;
      }
    }
    plan_reader(largest);
    const infer::VideoEncoder encoder(in_.vae, codec_options());
    const data::ModelNeeds& needs = in_.search.request.needs;
    const std::int64_t side = encoder.config().pixels_per_latent();
    if (encoder.config().z_dim != needs.latent_channels || side != needs.spatial_stride) {
      fail(ErrorCode::input,
           "{} makes latents of {} channels, one for {} x {} pixels; {} takes {} "
           "channels for {} x {}",
           in_.vae, encoder.config().z_dim, side, side, in_.model, needs.latent_channels,
           needs.spatial_stride, needs.spatial_stride);
    }
    if (!largest) {
      log::info("media: {} to encode, each planned by its size", in_.media());
      return std::nullopt;
    }
    return PlannedStage{
        "media", in_.media(),
        encoder.part(largest->height / side, largest->width / side, largest->frames > 1),
        [clip = *largest, this](const fit::PlannedRun& plan) {
          return fmt::format("at most {} frames of {} x {}; {}; reading takes {}", clip.frames,
                             clip.width, clip.height, wan_vae::policy_text(plan), reader_);
        }};
  }

  void add_stage(const PlannedStage& stage, const fit::PlannedRun& plan) {
    planned_ = std::max(planned_, plan.needed_ram());
    stages_.push_back({.name = stage.what,
                       .how = fmt::format("{} to encode, {}", stage.count, stage.how(plan)),
                       .device = plan.needed(Tier::device),
                       .host = plan.needed(Tier::host)});
  }

  // Refuses what the caches' disk cannot hold. Of several disks the one with most space counts.
  void require_disk_space() const {
    constexpr std::int64_t kFileOverhead = 4096, kLargeLatent = 64 << 20;
    Bytes free;
    std::string folder;
    for (const data::EncodingWork& w : in_.work) {
      for (const data::EncodingSet& s : w.sets) {
        const Bytes here = disk_free(s.cache).value_or(kUnlimited);
        if (here > free) free = here, folder = s.cache;
      }
    }
    std::int64_t files = texts_ ? in_.texts() : 0, values = text_values_;
    // Headers of media are read only where space may be short.
    const Bytes ample{static_cast<std::uint64_t>(in_.media() * kLargeLatent)};
    for (const data::EncodingWork& w : in_.work) {
      if (!media_ || free > ample) break;
      const data::ComingClips coming =
          data::coming_clips(w, in_.search.request, data::read_media());
      files += coming.files;
      values += coming.values;
    }
    const Bytes needed{static_cast<std::uint64_t>(values) * size_of(in_.store) +
                       static_cast<std::uint64_t>(files * kFileOverhead)};
    if (needed <= free) return;
    if (own_.ignore_limits) {
      return log::warn("the caches take {}, {} are free in {} (--ignore-limits)", needed, free,
                       folder);
    }
    fail(ErrorCode::refused,
         fmt::format("does not fit: {} more disk space needed in {}: the caches of {} captions and "
                     "{} media files take {}, {} are free",
                     needed - free, printable(folder), texts_ ? in_.texts() : 0,
                     media_ ? in_.media() : 0, needed, free),
         {{fmt::format("free {} on that disk", needed - free), "then it fits"},
          {"--ignore-limits", "encodes until the disk is full; the same command continues there"}});
  }

  void show_plan() const {
    if (stages_.empty()) return;
    const bool shared_ram = target_.backend.device == Device::cpu;
    const std::string text =
        stages_table(budget_, shared_ram, stages_, text_columns(own_.json ? stderr : stdout));
    if (own_.json) {
      log::info("{}", text);
    } else {
      print(text);
    }
  }

  void encode_texts() {
    const infer::TextEncoder encoder = text_encoder();
    const data::Tokenizer tokenizer = data::Tokenizer::open(in_.tokenizer);
    const auto encode = [&](std::span<const std::string> captions) {
      std::vector<std::vector<std::int32_t>> ids;
      for (const std::string& c : captions) ids.push_back(ids_of(tokenizer, c));
      std::vector<data::TextRows> rows;
      for (infer::TextStates& s : encoder.encode(ids)) {
        rows.push_back({.tokens = s.tokens, .dim = s.width, .values = std::move(s.values)});
      }
      measure();
      return rows;
    };
    for (const data::EncodingWork& w : in_.work) {
      data::encode_texts(w, options_, encode, report_);
      if (options_.stop()) return;
    }
  }

  void encode_media() {
    infer::VideoEncoder encoder(in_.vae, codec_options());
    const auto encode = [&](std::int64_t frames, std::int64_t height, std::int64_t width,
                            const data::FrameSource& source) {
      std::vector<float> latent = encoder.encode(frames, height, width, source);
      measure();
      return latent;
    };
    for (const data::EncodingWork& w : in_.work) {
      data::encode_media(w, options_, encode, data::read_media(), report_);
      if (options_.stop()) return;
    }
  }

  void measure() {
    if (const auto now = process_memory(Counting::quick))
      measured_ = std::max(measured_, now->total());
  }

  std::string summary() const {
    std::string text =
        fmt::format("{} captions encoded, {} already cached\n{} clips encoded, {} already cached\n",
                    report_.texts, report_.texts_there, report_.clips, report_.clips_there);
    if (measured_.count > 0) {
      text += fmt::format(
          "RAM: {}measured at most {}\n",
          planned_.count > 0 ? fmt::format("planned {}, ", planned_) : std::string(), measured_);
    }
    if (report_.skipped.empty()) return text;
    text += fmt::format("{} files skipped:\n", report_.skipped.size());
    for (const data::SkippedFile& s : report_.skipped) {
      text +=
          fmt::format("  {}: {}\n", printable(s.path), printable(without_rule_ids(s.reason), 400));
    }
    return text;
  }

  std::string json() const {
    std::string out = fmt::format(
        "{{\"captions\": {{\"encoded\": {}, \"there\": {}}}, \"clips\": {{\"encoded\": {}, "
        "\"there\": {}}}, \"planned_ram_bytes\": {}, \"ram_bytes\": {}, \"skipped\": [",
        report_.texts, report_.texts_there, report_.clips, report_.clips_there, planned_.count,
        measured_.count);
    for (std::size_t i = 0; i < report_.skipped.size(); ++i) {
      out += i == 0 ? "{\"path\": " : ", {\"path\": ";
      put_json_text(out, report_.skipped[i].path);
      out += ", \"reason\": ";
      put_json_text(out, report_.skipped[i].reason);
      out += "}";
    }
    return out + "]}\n";
  }

  const train::TrainConfig& config_;
  const OwnFlags& own_;
  train::RunTarget target_;
  Budget budget_;
  CacheInputs in_;
  data::EncodingOptions options_;
  std::int64_t text_values_ = 0;
  data::EncodingReport report_;
  bool texts_ = false, media_ = false;
  ProcessLine vocabulary_;
  Bytes reader_;  // what lies between file and encoder
  Bytes planned_, measured_;
  std::vector<PlanStage> stages_;
};

DatasetCaching::DatasetCaching(const train::TrainConfig& config, const OwnFlags& own, CacheUse use)
    : work_(std::make_unique<Work>(config, own, use)) {}
DatasetCaching::~DatasetCaching() = default;
bool DatasetCaching::needed() const { return work_->needed(); }
bool DatasetCaching::reads_media() const { return work_->reads_media(); }
void DatasetCaching::plan() { work_->plan(); }
train::ComingData DatasetCaching::coming() { return work_->coming(); }
bool DatasetCaching::encode(const std::function<bool()>& stop) { return work_->encode(stop); }
void DatasetCaching::finish() const { work_->finish(); }
std::string DatasetCaching::progress() const { return work_->progress(); }

void require_clips(const data::EncodingReport& report) {
  if (report.skipped.empty() || report.clips + report.clips_there > 0) return;
  fail(ErrorCode::input,
       fmt::format("no clip is left to train on: {} media file{} left out", report.skipped.size(),
                   report.skipped.size() == 1 ? " was" : "s were"),
       {{"media that can be decoded and fill a frame bucket",
         "the reason for each file is listed above"}});
}

void cache_dataset(const train::TrainConfig& config, const OwnFlags& own) {
  if (config.vae) return cache_clips(config, own);
  for (const std::string& note : config.notes) log::info("{}", note);
  DatasetCaching caching(config, own, CacheUse::cache);
  caching.plan();
  caching.encode();
  caching.finish();
}

}  // namespace ballast
