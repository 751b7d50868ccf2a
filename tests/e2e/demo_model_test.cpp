#include <array>
#include <cmath>
#include <filesystem>

#include "core/to_size.h"
#include "io/media_reader.h"
#include "io/media_writer.h"
#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

const std::string kModel = BALLAST_SOURCE_DIR "/examples/demo_model/model";

// What stands out from the dark ground of a frame.
struct Seen {
  double pixels = 0, x = 0, y = 0;
  std::array<double, 3> colour{};
};

Seen shape_in(std::span<const std::uint8_t> frame, std::int64_t width) {
  Seen s;
  for (std::size_t i = 0; i < frame.size(); i += 3) {
    const int brightest = std::max({frame[i], frame[i + 1], frame[i + 2]});
    if (brightest < 100) continue;
    const auto at = static_cast<std::int64_t>(i / 3);
    s.pixels += 1;
    s.x += static_cast<double>(at % width);
    s.y += static_cast<double>(at / width);
    for (std::size_t c = 0; c < 3; ++c) s.colour[c] += frame[i + c];
  }
  s.x /= s.pixels;
  s.y /= s.pixels;
  for (double& c : s.colour) c /= s.pixels;
  return s;
}

std::vector<Seen> shapes_in(const std::string& path) {
  MediaReader reader = MediaReader::open(path);
  std::vector<std::uint8_t> frame(reader.frame_bytes());
  std::vector<Seen> all;
  while (reader.next(frame)) all.push_back(shape_in(frame, reader.info().width));
  return all;
}

// A circle of this model covers about 700 of 4096 pixels; noise would be everywhere and grey.
TEST(DemoModel, DrawsTheColourAndTheMotionOfThePrompt) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  const TempDir dir;
  const std::string prompts =
      dir.write("prompts.txt", "a red circle moves right\na blue square falls\n");
  const Finished f = run_ballast({"sample",
                                  "--model",
                                  kModel,
                                  "--prompt-file",
                                  prompts,
                                  "--negative-prompt",
                                  " ",
                                  "--frames",
                                  "13",
                                  "--width",
                                  "64",
                                  "--height",
                                  "64",
                                  "--steps",
                                  "10",
                                  "--shift",
                                  "3",
                                  "--guidance",
                                  "3",
                                  "--seed",
                                  "5",
                                  "--device",
                                  "cpu",
                                  "--output",
                                  dir.path("clip.gif")});
  ASSERT_EQ(f.exit_code, 0) << f.out << f.err;
  const std::vector<Seen> red = shapes_in(dir.path("clip-1.gif")),
                          blue = shapes_in(dir.path("clip-2.gif"));
  ASSERT_EQ(red.size(), 13u);
  ASSERT_EQ(blue.size(), 13u);
  for (const std::vector<Seen>* clip : {&red, &blue}) {
    for (const Seen& s : *clip) {
      EXPECT_GT(s.pixels, 250);
      EXPECT_LT(s.pixels, 1400);
    }
  }
  EXPECT_GT(red[6].colour[0], 1.6 * std::max(red[6].colour[1], red[6].colour[2]));
  EXPECT_GT(blue[6].colour[2], 1.4 * std::max(blue[6].colour[0], blue[6].colour[1]));
  EXPECT_GT(red[12].x - red[0].x, 12);
  EXPECT_LT(std::abs(red[12].y - red[0].y), 6);
  EXPECT_GT(blue[12].y - blue[0].y, 12);
  EXPECT_LT(std::abs(blue[12].x - blue[0].x), 6);
}

// A dataset that was never cached gives the LoRA of one that was.
TEST(DemoModel, TrainsTheSameLoraWithAndWithoutCaching) {
  if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  const auto adapter_of = [](bool cache_first) {
    const TempDir dir;
    for (int clip = 0; clip < 2; ++clip) {
      std::filesystem::create_directories(dir.path("clips"));
      const auto writer = open_media_writer(dir.path(fmt::format("clips/{}.mp4", clip)),
                                            {.width = 64, .height = 64, .rate = {16, 1}});
      for (int t = 0; t < 13; ++t) {
        std::vector<std::uint8_t> frame(64 * 64 * 3, 20);
        for (int y = 20; y < 40; ++y) {
          for (int x = 10 + 2 * t; x < 30 + 2 * t; ++x) {
            frame[to_size((y * 64 + x) * 3 + clip)] = 220;
          }
        }
        writer->add(frame);
      }
      writer->finish();
      dir.write(fmt::format("clips/{}.txt", clip),
                clip == 0 ? "a red square moves right" : "a green square moves right");
    }
    const std::string set =
        dir.write("set.toml", "resolutions = [64]\nframe_buckets = [13]\n[[directory]]\npath = '" +
                                  dir.path("clips") + "'\n");
    const std::string config = dir.write(
        "run.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 2\n"
                                "save_every_n_epochs = 2\nuncond_fraction = 0.5\nseed = 3\n"
                                "[model]\ntype = 'wan'\nckpt_path = '{}'\ndtype = 'bfloat16'\n"
                                "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                                "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                                dir.path("out"), set, kModel));
    const auto run = [&](const char* command) {
      const Finished f = run_ballast({command, config, "--device", "cpu"});
      EXPECT_EQ(f.exit_code, 0) << command << f.out << f.err;
    };
    if (cache_first) run("cache");
    run("train");
    for (const auto& f : std::filesystem::recursive_directory_iterator(dir.path("out"))) {
      if (f.path().filename() == "adapter_model.safetensors") return read_whole(f.path().string());
    }
    return std::string();
  };
  const std::string cached = adapter_of(true);
  ASSERT_FALSE(cached.empty());
  EXPECT_TRUE(adapter_of(false) == cached);
}

}  // namespace
}  // namespace ballast::test
