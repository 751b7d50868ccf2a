// Where the media of a dataset lie: in archives, in lists, under names that leave no room.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/data/encoding_folder.h"
#include "tests/support/errors.h"
#include "tests/support/tar_file.h"

namespace ballast::data::encoded_media_test {
namespace {

using test::read_whole;
using test::tiny_needs;

class EncodedMedia : public encoding_test::Encoding {};

TEST_F(EncodedMedia, ReadsMembersOfArchivesWhereTheyLie) {
  directory_ = "mask_path = '" + dir_.path("masks") + "'\n";
  dir_.write("masks/a.png", "mask");
  add("plain.mp4", "40 40 9 16", "beside");
  const auto pack = [&](const std::string& frames) {
    dir_.write("clips/more.tar",
               test::tar_member({.name = "in/a.txt", .data = " one \n"}) +
                   test::tar_member({.name = "in/a.mp4", .data = "40 40 " + frames + " 16"}) +
                   test::tar_member({.name = "b.png", .data = "40 40 1 0"}) +
                   test::tar_member({.name = "b.txt", .data = "two"}) +
                   test::tar_member({.name = "lonely.mp4", .data = "40 40 9 16"}) +
                   test::tar_member({.name = "torn.mp4", .data = "nothing"}) +
                   test::tar_member({.name = "torn.txt", .data = "three"}) +
                   test::tar_member({.name = "../up.mp4", .data = "40 40 9 16"}) +
                   test::tar_member({.name = "._a.mp4", .data = "hidden"}) +
                   test::tar_member({.name = "inner.tar", .data = "x"}) + test::tar_end());
  };
  pack("9");
  write_set();
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 3);
  EXPECT_EQ(report.texts, 5) << "four captions and the empty one";
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].path, dir_.path("clips") + "/more.tar/torn.mp4");
  EXPECT_FALSE(std::filesystem::exists(dir_.path("clips/more.tar/in")));

  const auto d = open_dataset(request_);
  ASSERT_EQ(d->samples().size(), 3u);
  EXPECT_TRUE(d->has_masks()) << "by the last part of a member's name";
  std::set<float> captions;
  for (std::uint32_t i = 0; i < 3; ++i) {
    captions.insert(test::read_sample(*d, tiny_needs(), i).context[0]);
  }
  EXPECT_EQ(captions, (std::set<float>{static_cast<float>(hash_of("one") % 100),
                                       static_cast<float>(hash_of("two") % 100),
                                       static_cast<float>(hash_of("beside") % 100)}));
  std::string notes;
  for (const std::string& n : d->notes()) notes += n + "\n";
  EXPECT_THAT(notes, ::testing::HasSubstr("1 member is left out (its name leads upwards (..))"));
  EXPECT_THAT(notes, ::testing::HasSubstr("an archive inside an archive"));
  EXPECT_THAT(notes, ::testing::HasSubstr("more.tar/lonely.mp4 first"));

  encoders_ = {};
  EXPECT_EQ(run().clips_there, 3);
  EXPECT_EQ(encoders_.clips + encoders_.texts, 0);
  pack("10");
  EXPECT_FAILS(open_dataset(request_), ErrorCode::input, "not cached yet");
  run();
  EXPECT_EQ(open_dataset(request_)->samples().size(), 3u);

  // captions.json has the names inside archives.
  dir_.write("clips/captions.json", R"({"in/a.mp4": ["x", "y"], "plain.mp4": ["z"]})");
  run();
  EXPECT_EQ(open_dataset(request_)->samples().size(), 3u);
  std::string bytes = read_whole(dir_.path("clips/more.tar"));
  bytes[600] ^= 1;
  dir_.write("clips/more.tar", bytes.substr(0, 512 + 512 + 100));
  EXPECT_FAILS(find_encoding_work({request_}), ErrorCode::input, "more.tar");
}

TEST_F(EncodedMedia, ReadsAListOfMediaLineByLineInsideItsLimits) {
  const std::string list = dir_.write("lines.jsonl", "{\n");
  request_.path = dir_.write(
      "set.toml", "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" + list +
                      "'\ncache_directory = '" + dir_.path("images") + "'\n");
  std::filesystem::resize_file(list, 10'000'000'000);
  EXPECT_FAILS(run(), ErrorCode::input, "lines.jsonl: JSON lines");  // line 1, before the rest
  dir_.write("lines.jsonl", "\n");
  std::filesystem::resize_file(list, 10'000'000'000);
  EXPECT_FAILS(run(), ErrorCode::input, "lines.jsonl, line 2: more than 16777216 bytes");
}

TEST_F(EncodedMedia, RefusesPathsInAListThatNameNoFile) {
  request_.path = dir_.write(
      "set.toml", "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" +
                      dir_.path("lines.jsonl") + "'\ncache_directory = '" + dir_.path("images") +
                      "'\n");
  for (const char* path : {"", "clips/a.png\\u0000.txt"}) {
    dir_.write("lines.jsonl",
               fmt::format("{{\"image_path\": \"{}\", \"caption\": \"one\"}}\n", path));
    EXPECT_FAILS(run(), ErrorCode::input, "expected the path of a file");
  }
}

TEST_F(EncodedMedia, SkipsMediaWhoseNamesLeaveNoRoomForThoseOfACache) {
  const std::string name(240, 'n');
  add("a.png", "64 64 1 0", "one");
  add(name + ".png", "64 64 1 0", "two");
  request_.path = dir_.write(
      "set.toml",
      "[general]\nresolution = [32, 32]\n[[datasets]]\nimage_jsonl_file = '" +
          dir_.write("lines.jsonl", fmt::format("{{\"image_path\": \"clips/{}.png\", \"caption\": "
                                                "\"two\"}}\n{{\"image_path\": \"clips/a.png\", "
                                                "\"caption\": \"one\"}}\n",
                                                name)) +
          "'\ncache_directory = '" + dir_.path("images") + "'\n");
  const EncodingReport report = run();
  EXPECT_EQ(report.clips, 1);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_THAT(report.skipped[0].reason, ::testing::HasSubstr("its name has 240 bytes"));
  request_.path = dir_.path("clips");
  encoders_.needs.latent_channels = 48;  // of pairs beside the media
  encoders_.needs.pair_statistics = encoding_test::own_statistics();
  encoders_.needs.spatial_stride = 16;
  request_.needs = encoders_.needs;
  request_.needs.pixel_multiple = 32;
  EXPECT_THAT(run().skipped.at(0).reason, ::testing::HasSubstr("its name has 240 bytes"));
}

}  // namespace
}  // namespace ballast::data::encoded_media_test
