#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "io/media_writer.h"
#include "tests/e2e/ballast_process.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_training.h"

namespace ballast::test {

// A folder of clips, a model and the small encoders that `ballast cache` encodes them with.
class CacheCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without media";
    support::write_parts(dir_, run_.config());
    dir_.write("set.toml", "resolutions = [32]\nframe_buckets = [1, 5]\n[[directory]]\npath = '" +
                               dir_.path("clips") + "'\n");
    config_ =
        dir_.write("run.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                                           "save_every_n_epochs = 1\n"
                                           "[model]\ntype = 'wan'\nckpt_path = '{}'\n"
                                           "dtype = 'float32'\n{}{}",
                                           dir_.path("out"), dir_.path("set.toml"),
                                           run_.model_path(), support::parts_keys(dir_), kTables));
  }

  void add_clip(const std::string& name, std::int64_t frames) {
    std::filesystem::create_directories(dir_.path("clips"));
    const auto writer = open_media_writer(dir_.path("clips/" + name + ".mp4"),
                                          {.width = 48, .height = 40, .rate = {16, 1}});
    for (std::int64_t t = 0; t < frames; ++t) {
      std::vector<std::uint8_t> pixels(48 * 40 * 3);
      for (std::size_t i = 0; i < pixels.size(); ++i) {
        pixels[i] = static_cast<std::uint8_t>(20 + (i + 7 * to_size(t)) % 200);
      }
      writer->add(pixels);
    }
    writer->finish();
    dir_.write("clips/" + name + ".txt", "a clip bcd " + name);
  }

  std::vector<std::string> command(const char* name) const {
    return {name, config_, "--device", "cpu", "--threads", "1"};
  }

  std::map<std::string, std::string> cached() const {
    std::map<std::string, std::string> files;
    std::error_code none;
    for (const auto& f :
         std::filesystem::recursive_directory_iterator(dir_.path("clips/cache"), none)) {
      if (f.is_regular_file() && !f.path().filename().string().starts_with('.')) {
        files[f.path().string()] = read_whole(f.path().string());
      }
    }
    return files;
  }

  static constexpr const char* kTables =
      "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
      "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

  support::TinyTraining run_;
  TempDir dir_;
  std::string config_;
};

inline std::uint64_t number_after(const std::string& text, const std::string& key) {
  const auto at = text.find(key);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size()));
}

}  // namespace ballast::test
