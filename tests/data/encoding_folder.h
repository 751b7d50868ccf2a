#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "data/dataset_encoding.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data::encoding_test {

// Of a VAE of 48 channels, each with numbers of its own.
inline LatentStatistics own_statistics() {
  static const auto values = [] {
    VaeStatistics v;
    for (int c = 0; c < 48; ++c) {
      v.mean.push_back(static_cast<float>(c) / 48 - 0.2f);
      v.std.push_back(static_cast<float>(c) / 48 + 0.5f);
    }
    return v;
  }();
  return values.view();
}

// A media file of these tests says "WIDTH HEIGHT FRAMES FPS" and, if it is to break, at which
// frame (-2: it is described and has no decoder). Frame k of it has the value k / 100 everywhere.
class TextMedia final : public OpenMedia {
 public:
  explicit TextMedia(const FileSource& source) {
    const SourceFile file = source.open();
    std::string bytes(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    const std::string& path = source.path;
    std::istringstream text(bytes);
    if (!(text >> info_.width >> info_.height >> info_.frames >> info_.fps)) {
      fail(ErrorCode::input, path + " is no video");
    }
    text >> broken_;
  }
  const MediaInfo& info() const override { return info_; }
  void begin(ClipPlan plan) override {
    if (broken_ == -2) fail(ErrorCode::input, "it has no decoder");
    plan_ = std::move(plan);
    clip_ = -1;
  }
  bool next() override {
    at_ = 0;
    return ++clip_ < std::ssize(plan_.clips);
  }
  void read(std::span<float> frames) override {
    const auto size = to_size(plan_.size.width * plan_.size.height * 3);
    for (; !frames.empty(); frames = frames.subspan(size)) {
      const std::int64_t k = plan_.clips[to_size(clip_)].frames.at(at_++);
      if (k == broken_) fail(ErrorCode::input, fmt::format("frame {} is broken", k));
      std::fill_n(frames.begin(), size, static_cast<float>(k) / 100);
    }
  }

 private:
  MediaInfo info_;
  ClipPlan plan_;
  std::int64_t clip_ = -1, broken_ = -1;
  std::size_t at_ = 0;
};

struct Killed {};

// Encoders that give numbers one can check, and that end the run when they are told to.
struct Encoders {
  ModelNeeds needs = test::tiny_needs();
  int texts = 0, clips = 0;  // encoded
  int left = -1;             // calls until the run is killed; -1: never

  void call() {
    if (left == 0) throw Killed();
    if (left > 0) --left;
  }
  EncodeText text() {
    return [this](std::span<const std::string> captions) {
      call();
      std::vector<TextRows> rows;
      for (const std::string& c : captions) {
        ++texts;
        TextRows r{.tokens = c.empty() ? 1 : 2, .dim = needs.text_dim};
        r.values.assign(to_size(r.tokens * r.dim), static_cast<float>(hash_of(c) % 100));
        rows.push_back(std::move(r));
      }
      return rows;
    };
  }
  // Every latent frame has the value of the last frame it was made from.
  EncodeVideo video() {
    return [this](std::int64_t frames, std::int64_t height, std::int64_t width,
                  const FrameSource& source) {
      call();
      const LatentShape s{needs.latent_channels, 1 + (frames - 1) / 4,
                          height / needs.spatial_stride, width / needs.spatial_stride};
      std::vector<float> latent(to_size(s.elements()));
      std::vector<float> pixels(to_size(4 * height * width * 3));
      for (std::int64_t f = 0; f < s.frames; ++f) {
        const std::int64_t count = f == 0 ? 1 : 4;
        source(f == 0 ? 0 : 4 * f - 3, count,
               std::span(pixels).first(to_size(count * height * width * 3)));
        const float value = pixels[to_size((count - 1) * height * width * 3)];
        const auto cells = to_size(s.height * s.width);
        for (std::int64_t c = 0; c < s.channels; ++c) {
          const auto at = to_size(c * s.frames + f) * cells;
          std::fill_n(latent.begin() + static_cast<std::ptrdiff_t>(at), cells, value);
        }
      }
      ++clips;
      return latent;
    };
  }
};

// A folder of such media, described by a file, and the encoders that write its caches.
class Encoding : public ::testing::Test {
 protected:
  void write_set(const std::string& more = "", const std::string& resolutions = "[32]") {
    request_.path = dir_.write(
        "set.toml", "resolutions = " + resolutions + "\nframe_buckets = [1, 5]\n" + more +
                        "[[directory]]\npath = '" + dir_.path("clips") + "'\n" + directory_);
  }
  void add(const std::string& name, const std::string& media, const std::string& caption) {
    dir_.write("clips/" + name, media);
    dir_.write("clips/" + std::string(stem_of(name)) + ".txt", caption);
  }

  EncodingReport run(bool regenerate = false) {
    EncodingOptions o{.request = request_, .writing = test::kQuickly, .text_batch = 2};
    o.regenerate = regenerate;
    const EncodingWork work = find_encoding_work({request_, regenerate});
    EncodingReport report;
    report.skipped = work.skipped;
    encode_texts(work, o, encoders_.text(), report);
    const MediaAccess access{
        .open = [](const FileSource& source) { return std::make_unique<TextMedia>(source); },
        .mask =
            [](const std::string&, PixelSize, PixelSize, PixelSize latent) {
              return std::vector<float>(to_size(latent.width * latent.height), 0.5f);
            }};
    encode_media(work, o, encoders_.video(), access, report);
    return report;
  }

  std::map<std::string, std::string> files(const std::string& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file())
        all[entry.path().string()] = test::read_whole(entry.path().string());
    }
    return all;
  }

  test::TempDir dir_;
  std::string directory_;
  DatasetRequest request_{.path = {}, .needs = test::tiny_needs()};
  Encoders encoders_;
};

}  // namespace ballast::data::encoding_test
