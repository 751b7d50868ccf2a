#include "data/dataset_options.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ballast::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct PipeFile {
  DiffusionPipeDataset dataset;
  std::vector<std::string> notes;
};

PipeFile pipe(std::string_view text, bool many = false, const ModelNeeds& needs = {}) {
  const TomlFile file = TomlFile::parse(text, "dataset.toml");
  PipeFile f;
  f.dataset = read_diffusion_pipe_dataset(file.root(), needs, many, f.notes);
  return f;
}

struct MusubiFile {
  std::vector<MusubiDataset> datasets;
  std::vector<std::string> notes;
};

MusubiFile musubi(std::string_view text) {
  const TomlFile file = TomlFile::parse(text, "musubi.toml");
  MusubiFile f;
  f.datasets = read_musubi_datasets(file.root(), f.notes);
  return f;
}

TEST(DiffusionPipeFile, SizeBucketsReplaceOtherBuckets) {
  const PipeFile f = pipe(
      "size_buckets = [[512, 512, 33]]\nenable_ar_bucket = true\nresolutions = [512]\n"
      "frame_buckets = [1, 33]\n[[directory]]\npath = '/a'\n");
  EXPECT_EQ(f.dataset.directories[0].rules.sizes.size(), 1u);
  EXPECT_EQ(f.notes.size(), 3u);
  for (const std::string& note : f.notes) EXPECT_THAT(note, HasSubstr("size_buckets replace it"));
}

TEST(DiffusionPipeFile, OfA24GbRunIsReadAsItIs) {
  const PipeFile f = pipe(R"(resolutions = [512]
enable_ar_bucket = false
ar_buckets = [[512, 512]]
frame_buckets = [24]
caption_extension = '.txt'
video_extensions = ['.mp4', '.mov', '.avi']
center_crop = true
random_flip = false
video_clip_mode = 'single_beginning'

[[directory]]
path = 'data/squish'
num_repeats = 1
)");
  ASSERT_EQ(f.dataset.directories.size(), 1u);
  const MediaDirectory& d = f.dataset.directories[0];
  EXPECT_EQ(d.path, "data/squish");
  EXPECT_EQ(all_buckets(d.rules), (std::vector<ClipSize>{{512, 512, 1}, {512, 512, 21}}));
  EXPECT_EQ(f.dataset.clip_mode, "single_beginning");
  ASSERT_EQ(f.notes.size(), 6u);
  EXPECT_THAT(f.notes[0], HasSubstr("video_clip_mode (line 9): honoured"));
  EXPECT_THAT(f.notes[1], HasSubstr("ar_buckets (line 3): has no effect without enable_ar_bucket"));
  EXPECT_THAT(f.notes[2], HasSubstr("caption_extension (line 5)"));
}

TEST(DiffusionPipeFile, EveryKeyIsHonoured) {
  const PipeFile f = pipe(R"(
resolutions = [256, [832, 480]]
enable_ar_bucket = true
min_ar = 0.5
max_ar = 2
num_ar_buckets = 3
frame_buckets = [33]
num_repeats = 2
subsample_ratio = 0.5
caption_prefix = 'squish, '
[[directory]]
path = '/a'
[[directory]]
path = '/b'
num_repeats = 0.25
enable_ar_bucket = true
ar_buckets = [1, [16, 9]]
resolutions = [512]
frame_buckets = [1, 81]
shuffle_tags = true
cache_shuffle_delimiter = ';'
skip_empty_caption = false
shuffle_metadata = false
mask_path = '/masks'
default_mask_file = '/masks/all.png'
[[directory]]
path = '/c'
size_buckets = [[512, 512, 1], [832, 480, 81]]
cache_shuffle_num = 4
shuffle_tags = true
)");
  ASSERT_EQ(f.dataset.directories.size(), 3u);
  const MediaDirectory& a = f.dataset.directories[0];
  const MediaDirectory& b = f.dataset.directories[1];
  const MediaDirectory& c = f.dataset.directories[2];
  EXPECT_EQ(f.dataset.subsample_ratio, 0.5);
  EXPECT_THAT(a.rules.ratios, ElementsAre(0.5, 1, 2));
  EXPECT_THAT(a.rules.resolutions, ElementsAre(256, 631.949));
  EXPECT_THAT(a.rules.frames, ElementsAre(1, 33));
  EXPECT_EQ(a.num_repeats, 2);
  EXPECT_EQ(a.captions.prefix, "squish, ");
  EXPECT_EQ(a.captions.shuffles, 0);
  EXPECT_TRUE(a.captions.skip_empty && a.shuffle_files);
  EXPECT_THAT(b.rules.ratios, ElementsAre(1, 1.778));
  EXPECT_THAT(b.rules.resolutions, ElementsAre(512));
  EXPECT_THAT(b.rules.frames, ElementsAre(1, 81));
  EXPECT_EQ(b.num_repeats, 0.25);
  EXPECT_EQ(b.captions.shuffles, 1);
  EXPECT_EQ(b.captions.delimiter, ";");
  EXPECT_EQ(b.captions.prefix, "squish, ");
  EXPECT_FALSE(b.captions.skip_empty || b.shuffle_files);
  EXPECT_EQ(b.mask_path, "/masks");
  EXPECT_EQ(b.default_mask, "/masks/all.png");
  EXPECT_EQ(all_buckets(c.rules), (std::vector<ClipSize>{{512, 512, 1}, {832, 480, 81}}));
  EXPECT_EQ(c.captions.shuffles, 4);
}

TEST(DiffusionPipeFile, SizesAreMultiplesOfWhatTheModelTakes) {
  ModelNeeds needs;
  needs.pixel_multiple = 32;
  needs.fps = 24;
  const PipeFile f = pipe(
      "resolutions = [[1280, 720]]\nenable_ar_bucket = true\nar_buckets = [[1280, 720]]\n"
      "[[directory]]\npath = 'x'\n",
      false, needs);
  EXPECT_EQ(all_buckets(f.dataset.directories[0].rules), (std::vector<ClipSize>{{1280, 704, 1}}));
  EXPECT_EQ(f.dataset.directories[0].rules.fps, 24);
}

TEST(DiffusionPipeFile, MistakesAreNamedWithTheirLine) {
  const std::string dir = "\n[[directory]]\npath = 'x'\n";
  const std::pair<std::string, std::string> cases[] = {
      {"resolution = [512]" + dir, "line 1"},
      {"resolution = [512]" + dir, "resolutions"},
      {"resolutions = [512]" + dir + "num_repeat = 2", "num_repeats"},
      {"resolutions = [512]" + dir + "num_repeats = 0", "line 4"},
      {"resolutions = 'big'" + dir, "resolutions"},
      {"resolutions = [[1, 2, 3]]" + dir, "[width, height] pairs"},
      {"resolutions = [-5]" + dir, "resolution -5"},
      {"resolutions = [512]\nenable_ar_bucket = true" + dir, "ar_buckets"},
      {"resolutions = [512]\nframe_buckets = [0]" + dir, "frame bucket"},
      {"resolutions = [512]\nframe_buckets = [1.5]" + dir, "frame_buckets"},
      {"size_buckets = [[512, 512]]" + dir, "[width, height, frames]"},
      {"size_buckets = [[512, 512, 1]]\nenable_ar_bucket = 3" + dir, "enable_ar_bucket"},
      {"size_buckets = [[512, 512.5, 1]]" + dir, "[width, height, frames]"},
      {"resolutions = [512]\nsubsample_ratio = 0" + dir, "subsample_ratio"},
      {"resolutions = [512]\nvideo_clip_mode = 'multiple_overlapping'" + dir, "single_middle"},
      {"resolutions = [512]\ncache_shuffle_num = 1000000000" + dir, "cache_shuffle_num"},
      {"resolutions = [512]\n[[directory]]\nnum_repeats = 1", "path"},
      {"resolutions = [1, 2, 3, 4]" + dir, "4 resolutions"},
  };
  for (const auto& [text, message] : cases) {
    const auto error = test::error_of([&] { pipe(text); });
    ASSERT_TRUE(error.has_value()) << text;
    EXPECT_EQ(error->code(), ErrorCode::input);
    EXPECT_THAT(error->what(), HasSubstr(message)) << text;
    EXPECT_THAT(error->what(), HasSubstr("dataset.toml")) << text;
  }
  EXPECT_EQ(pipe("resolutions = [128, 256, 512, 640]" + dir, true)
                .dataset.directories[0]
                .rules.resolutions.size(),
            4u)
      << "accepted where the user insists";
}

TEST(MusubiFile, IsReadWithItsDefaults) {
  const MusubiFile f = musubi(R"(
[general]
resolution = [960, 544]
caption_extension = ".txt"
batch_size = 2
enable_bucket = true
[[datasets]]
video_directory = "/videos"
cache_directory = "/videos/cache"
target_frames = [1, 25, 46]
frame_extraction = "uniform"
frame_sample = 4
source_fps = 30.0
[[datasets]]
image_jsonl_file = "/images.jsonl"
cache_directory = "/images/cache"
resolution = 512
batch_size = 4
num_repeats = 3
bucket_no_upscale = true
)");
  ASSERT_EQ(f.datasets.size(), 2u);
  const MusubiDataset& v = f.datasets[0];
  EXPECT_TRUE(v.video);
  EXPECT_EQ(v.media, "/videos");
  EXPECT_EQ(v.cache, "/videos/cache");
  EXPECT_EQ(v.resolution, (PixelSize{960, 544}));
  EXPECT_EQ(v.batch_size, 2);
  EXPECT_EQ(v.caption_extension, ".txt");
  EXPECT_TRUE(v.enable_bucket);
  EXPECT_EQ(v.clips.extraction, FrameExtraction::uniform);
  EXPECT_EQ(v.clips.samples, 4);
  EXPECT_EQ(v.clips.max_frames, 129);
  EXPECT_EQ(v.source_fps, 30.0);
  const MusubiDataset& i = f.datasets[1];
  EXPECT_FALSE(i.video);
  EXPECT_EQ(i.resolution, (PixelSize{512, 512}));
  EXPECT_EQ(i.batch_size, 4);
  EXPECT_EQ(i.num_repeats, 3);
  EXPECT_TRUE(i.no_upscale);
  EXPECT_TRUE(f.notes.empty());
}

TEST(MusubiFile, IsStrict) {
  const std::string d = "[[datasets]]\nvideo_directory = 'v'\n";
  const std::pair<std::string, std::string> cases[] = {
      {d + "num_repeat = 2", "num_repeats"},
      {d + "shuffle_tags = true", "line 3"},
      {"[general]\nbatchsize = 2\n" + d, "batch_size"},
      {d + "source_fps = 30", "30.0"},
      {d + "frame_extraction = 'tail'", "slide"},
      {d + "target_frames = []", "empty"},
      {d + "target_frames = [0]", "target_frames"},
      {d + "frame_stride = 0", "frame_stride"},
      {d + "batch_size = 0", "batch_size"},
      {d + "resolution = [1, 2, 3]", "resolution"},
      {d + "resolution = [8, 8]", "16 to"},
      {d + "image_directory = 'i'", "one of them"},
      {"[[datasets]]\nvideo_jsonl_file = 'v'", "cache_directory"},
      {"[[datasets]]\nbatch_size = 1", "image_directory"},
      {d + d, "each needs its own"},
      {"[[datasets]]\nimage_directory = 'v'\ntarget_frames = [1]", "target_frames"},
  };
  for (const auto& [text, message] : cases) {
    const auto error = test::error_of([&] { musubi(text); });
    ASSERT_TRUE(error.has_value()) << text;
    EXPECT_EQ(error->code(), ErrorCode::input);
    EXPECT_THAT(error->what(), HasSubstr(message)) << text;
  }
}

TEST(DatasetFile, IsRecognisedByItsTables) {
  const auto kind = [](std::string_view text) {
    return recognise_dataset(TomlFile::parse(text, "x.toml").root());
  };
  EXPECT_EQ(kind("[[directory]]\npath = 'x'"), DatasetFileKind::diffusion_pipe);
  EXPECT_EQ(kind("[[datasets]]\nvideo_directory = 'x'"), DatasetFileKind::musubi);
  EXPECT_FAILS(kind("epochs = 3"), ErrorCode::input, "neither");
  EXPECT_FAILS(kind("[[datasets]]\n[[directory]]\n"), ErrorCode::input, "not both");
}

}  // namespace
}  // namespace ballast::data
