#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "core/log.h"
#include "core/to_size.h"
#include "io/media_reader.h"
#include "io/media_writer.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_clip.h"

// Files that are broken or lie. All are made here, from small good ones.

namespace ballast::media_hostile_test {
namespace {

using test::error_of;
using test::read_whole;
using test::TempDir;

struct Sample {
  std::string name;  // with its ending
  std::string bytes;
};

class HostileMedia : public testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  }

  // A small good file of every container.
  std::vector<Sample> samples() const {
    std::vector<Sample> all;
    const MediaOptions o{.width = 32, .height = 24, .comment = R"({"seed": 1})"};
    for (const char* const name : {"a.mp4", "a.gif", "a.webp"}) {
      test::write_clip(dir_.path(name), o, 5);
      all.push_back({name, read_whole(dir_.path(name))});
    }
    const auto frame = test::clip_frame(32, 24, 0);
    write_png(dir_.path("a.png"), {32, 24, frame}, o.comment);
    all.push_back({"a.png", read_whole(dir_.path("a.png"))});
    all.push_back({"still.webp", encode_image(ImageCodec::webp, o, frame)});
    all.push_back({"a.jpg", test::small_jpeg()});
    return all;
  }

  // Probes and reads all frames. An error must be a typed one of the input.
  std::optional<Error> read_all(const std::string& name, std::string_view bytes) const {
    const std::string path = dir_.write(name, bytes);
    const auto error = error_of([&] {
      probe_media(path);
      MediaReader reader = MediaReader::open(path);
      std::vector<std::uint8_t> frame(reader.frame_bytes());
      while (reader.next(frame)) {
      }
    });
    if (error) {
      EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
      EXPECT_THAT(error->what(), testing::HasSubstr(name));
    }
    return error;
  }

  TempDir dir_;
};

TEST_F(HostileMedia, FilesThatAreCutAreRefused) {
  for (const Sample& s : samples()) {
    for (int eighth = 0; eighth < 8; ++eighth) {
      const std::size_t n = s.bytes.size() * to_size(eighth) / 8;
      EXPECT_TRUE(read_all(s.name, s.bytes.substr(0, n)))
          << s.name << " of " << s.bytes.size() << " bytes cut at " << n;
    }
  }
}

TEST_F(HostileMedia, ChangedBytesGiveFramesOrATypedError) {
  std::uint32_t random = 5;
  const auto draw = [&](std::size_t below) {
    random = random * 1664525u + 1013904223u;
    return to_size(random >> 8) % below;
  };
  int refused = 0, tried = 0;
  for (const Sample& s : samples()) {
    for (int round = 0; round < 24; ++round) {
      std::string bytes = s.bytes;
      // Half of them near the front, where the numbers are.
      const std::size_t reach =
          round % 2 == 0 ? std::min<std::size_t>(bytes.size(), 200) : bytes.size();
      for (int i = 0; i <= round / 3; ++i) bytes[draw(reach)] = static_cast<char>(draw(256));
      refused += read_all(s.name, bytes).has_value();
      ++tried;
    }
  }
  EXPECT_GT(refused, tried / 4);  // else they hit nothing
}

TEST_F(HostileMedia, NumbersOfAllOnesAreRefusedOrIgnored) {
  for (const Sample& s : samples()) {
    const std::size_t reach = std::min<std::size_t>(s.bytes.size() - 4, 96);
    for (std::size_t at = 0; at < reach; at += 12) {
      std::string bytes = s.bytes;
      bytes.replace(at, 4, "\xff\xff\xff\x7f");
      read_all(s.name, bytes);
    }
  }
}

TEST_F(HostileMedia, WhatIsNoMediaIsRefused) {
  const std::vector<Sample> files = {
      {"empty.mp4", ""},
      {"one.png", "\x89"},
      {"text.mp4", "This is a text and no video, however it is called.\n"},
      {"zeros.mp4", std::string(4096, '\0')},
      {"list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"},
      {"list.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n"},
      {"list.txt", "ffconcat version 1.0\nfile /etc/passwd\n"},
      {"dash.mpd", "<?xml version=\"1.0\"?><MPD type=\"static\"><Period></Period></MPD>"},
      {"a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n"},
      {"a.svg",
       "<svg xmlns=\"http://www.w3.org/2000/svg\"><image href=\"file:///etc/passwd\"/></svg>"},
      {"sound.wav",
       std::string("RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x44\xac\0\0\x88\x58\1\0\2\0\x10\0"
                   "data\0\0\0\0",
                   44)},
  };
  for (const Sample& s : files) EXPECT_TRUE(read_all(s.name, s.bytes)) << s.name;
  EXPECT_FAILS(probe_media(dir_.path("nothing.mp4")), ErrorCode::io, "nothing.mp4");
  EXPECT_TRUE(error_of([&] { probe_media(dir_.path()); }));  // a folder
}

TEST_F(HostileMedia, HugePicturesAreRefusedBeforeTheyAreDecoded) {
  const std::string png = samples()[3].bytes;
  struct Case {
    std::uint32_t width, height;
  };
  for (const Case& c : {Case{16'385, 1}, Case{8192, 8192}, Case{65'535, 65'535},
                        Case{0x7fffffff, 0x7fffffff}, Case{1, 0x7fffffff}}) {
    std::string bytes = png;
    std::size_t at = 16;
    for (const std::uint32_t v : {c.width, c.height}) {
      for (int shift = 24; shift >= 0; shift -= 8) bytes[at++] = static_cast<char>(v >> shift);
    }
    // The chunk's checksum is right again: it is the size that is refused. A chunk that is the same
    // in any PNG ends there.
    const std::string chunk = bytes.substr(12, 17);
    std::uint32_t crc = ~0u;
    for (const char ch : chunk) {
      crc ^= static_cast<std::uint8_t>(ch);
      for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    for (std::size_t i = 0; i < 4; ++i) bytes[29 + i] = static_cast<char>(~crc >> (24 - 8 * i));
    allocation_hook::arm();
    EXPECT_TRUE(read_all("huge.png", bytes)) << c.width;
    // The smallest of the large ones has 192 MiB of pixels.
    EXPECT_LT(allocation_hook::disarm().bytes(), 32 << 20) << c.width;
  }
}

TEST_F(HostileMedia, FfmpegsOwnWordsGoToOurLog) {
  std::FILE* const log = std::tmpfile();
  const log::Level before = log::level();
  log::set_file(log);
  const auto words_at = [&](log::Level level) {
    log::set_level(level);
    const long start = std::ftell(log);
    read_all("a.mp4", samples()[0].bytes.substr(0, 900));
    return std::ftell(log) - start;
  };
  const long quiet = words_at(log::Level::info), loud = words_at(log::Level::debug);
  log::set_level(before);
  log::set_file(nullptr);
  std::fclose(log);
  EXPECT_EQ(quiet, 0);
  EXPECT_GT(loud, 0);
}

TEST(MediaMarks, OnlyMediaLooksLikeMedia) {
  const auto looks = [](std::string_view text) {
    return looks_like_media(std::as_bytes(std::span(text)));
  };
  EXPECT_TRUE(looks(test::small_jpeg()));
  EXPECT_TRUE(
      looks(std::string_view("\0\0\0\x20"
                             "ftypisom",
                             12)));
  EXPECT_FALSE(looks(""));
  EXPECT_FALSE(looks("{\"weight_map\": {}}"));
  EXPECT_FALSE(looks(std::string_view("\x10\0\0\0\0\0\0\0{\"a\"", 12)));  // safetensors
}

}  // namespace
}  // namespace ballast::media_hostile_test
