#include "dist/control_frames.h"

#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/to_size.h"
#include "tests/support/errors.h"

namespace ballast::control_frames_test {
namespace {

using testing::HasSubstr;

class ControlFrames : public testing::Test {
 protected:
  // Gives the bytes to the reader, so many at once.
  void feed(std::span<const std::byte> bytes, std::size_t at_once) {
    while (!bytes.empty()) {
      const auto to = reader_.space();
      const std::size_t part = std::min({at_once, bytes.size(), to.size()});
      std::memcpy(to.data(), bytes.data(), part);
      reader_.received(part);
      bytes = bytes.subspan(part);
      while (const auto frame = reader_.next()) {
        types_.push_back(frame->type);
        fields_.emplace_back(frame->fields.begin(), frame->fields.end());
      }
    }
  }
  template <class Message>
  Message through(const Message& m) {
    const auto bytes = encode(m, *buffer_);
    feed(std::vector(bytes.begin(), bytes.end()), 7);
    Message read;
    decode(fields_.back(), read);
    return read;
  }
  std::vector<std::byte> header(std::uint32_t length, std::uint16_t type, std::uint16_t version) {
    std::vector<std::byte> bytes(kControlHeader);
    std::memcpy(bytes.data(), &length, 4);
    std::memcpy(bytes.data() + 4, &type, 2);
    std::memcpy(bytes.data() + 6, &version, 2);
    return bytes;
  }

  std::unique_ptr<ControlBuffer> buffer_ = std::make_unique<ControlBuffer>();
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMaxControlFrame);
  ControlFrameReader reader_{memory_};
  std::vector<ControlType> types_;
  std::vector<std::vector<std::byte>> fields_;
};

TEST_F(ControlFrames, ComeInPiecesOfAnySize) {
  std::vector<std::byte> all;
  for (int i = 0; i < 50; ++i) {
    const auto one = encode(ControlDiffer{.table = std::string(to_size(i) * 37, 'x')}, *buffer_);
    all.insert(all.end(), one.begin(), one.end());
  }
  for (const std::size_t at_once : {1u, 3u, 100u, 5000u, 100000u}) {
    fields_.clear();
    feed(all, at_once);
    ASSERT_EQ(fields_.size(), 50u);
    ControlDiffer last;
    decode(fields_.back(), last);
    EXPECT_EQ(last.table, std::string(49 * 37, 'x'));
  }
}

TEST_F(ControlFrames, MessagesComeBackAsTheyWere) {
  const ControlHello hello = through(ControlHello{
      .token = "0123", .rank = 3, .ranks = 8, .process = 77, .output_device = 5, .output_file = 9});
  EXPECT_EQ(hello.token, "0123");
  EXPECT_EQ(hello.rank, 3u);
  EXPECT_EQ(hello.process, 77);
  EXPECT_EQ(hello.output_file, 9u);

  ControlHeartbeat beat;
  put_text(beat.phase, "update");
  beat.step = 41;
  beat.longest = 0.25;
  beat.progress = 1ull << 40;
  put_text(beat.exchange, "blocks.3.gradients");
  put_text(beat.memory[3].name, "RAM");
  beat.memory[3].measured = 12345;
  put_text(beat.folder, "out/run");
  const ControlHeartbeat read = through(beat);
  EXPECT_EQ(text_of(read.phase), "update");
  EXPECT_EQ(read.step, 41);
  EXPECT_EQ(read.checkpoint, -1);
  EXPECT_EQ(read.longest, 0.25);
  EXPECT_EQ(read.progress, 1ull << 40);
  EXPECT_EQ(text_of(read.exchange), "blocks.3.gradients");
  EXPECT_EQ(read.memory[3].measured, 12345u);
  EXPECT_EQ(text_of(read.folder), "out/run");

  const ControlFailure failure = through(ControlFailure{.code = ErrorCode::io,
                                                        .text = "disk\nfull",
                                                        .advice = {{"a", "b"}, {"c", ""}},
                                                        .shown = true});
  EXPECT_EQ(failure.code, ErrorCode::io);
  EXPECT_EQ(failure.text, "disk\nfull");
  ASSERT_EQ(failure.advice.size(), 2u);
  EXPECT_EQ(failure.advice[0].effect, "b");
  EXPECT_TRUE(failure.shown);

  const ControlReport report = through(ControlReport{
      .code = ErrorCode::lost, .rank = 2, .whole = false, .text = "long", .line = "short"});
  EXPECT_EQ(report.rank, 2u);
  EXPECT_FALSE(report.whole);
  EXPECT_EQ(report.text, "long");
  EXPECT_EQ(report.line, "short");

  const ControlFacts facts = through(ControlFacts{.facts = {{"a", "1"}, {"b", ""}}});
  EXPECT_EQ(facts.facts, (std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", ""}}));
}

TEST_F(ControlFrames, TextsThatAreTooLongAreCutBetweenCharacters) {
  std::string text;
  while (text.size() < 2 * kMaxControlFrame) text += "\xc3\xa9";
  ControlFailure failure = {.code = ErrorCode::io, .text = text};
  for (int i = 0; i < 40; ++i) failure.advice.push_back({std::string(300, 'a'), "b"});
  const ControlFailure read = through(failure);
  EXPECT_LT(read.text.size(), kMaxControlFrame);
  EXPECT_EQ(read.text, text.substr(0, read.text.size()));
  EXPECT_FALSE(read.advice.empty());
  EXPECT_LE(read.advice.size(), ControlFailure::kMaxAdvice);
  EXPECT_EQ(through(ControlReport{.text = text, .line = text}).text.substr(0, 2), "\xc3\xa9");
}

TEST_F(ControlFrames, WhatTheySayIsSafeToPrint) {
  const ControlFailure read =
      through(ControlFailure{.code = ErrorCode::io, .text = "a\x1b[2Jb\nc\rd\xff"});
  EXPECT_EQ(read.text.find('\x1b'), std::string::npos);
  EXPECT_EQ(read.text.find('\r'), std::string::npos);
  EXPECT_NE(read.text.find('\n'), std::string::npos);
}

TEST_F(ControlFrames, UnknownTypesAreSkipped) {
  auto bytes = header(3, 99, kControlVersion);
  bytes.resize(bytes.size() + 3);
  feed(bytes, 100);
  EXPECT_TRUE(types_.empty());
  through(ControlDiffer{.table = "x"});
  EXPECT_EQ(types_, std::vector{ControlType::differ});
}

TEST_F(ControlFrames, OtherVersionsAndLengthsAreRefused) {
  EXPECT_FAILS(feed(header(0, 1, 0x0200), 100), ErrorCode::input, "version 2.0");
  reader_ = ControlFrameReader(memory_);
  EXPECT_FAILS(feed(header(kMaxControlFrame, 1, kControlVersion), 100), ErrorCode::input,
               "a length of 16384 bytes");
  reader_ = ControlFrameReader(memory_);
  feed(header(0, 1, kControlVersion + 1), 100);  // a later version of the same kind
  EXPECT_EQ(types_.size(), 1u);
}

TEST_F(ControlFrames, FieldsThatAreMissingOrWrongAreRefused) {
  const auto bytes = encode(ControlFailure{.code = ErrorCode::io, .text = "text"}, *buffer_);
  const std::vector<std::byte> whole(bytes.begin() + kControlHeader, bytes.end());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    ControlFailure m;
    EXPECT_FAILS(decode(std::span(whole).first(n), m), ErrorCode::input, "missing");
  }
  auto wrong = whole;
  wrong[0] = std::byte{99};
  ControlFailure m;
  EXPECT_FAILS(decode(wrong, m), ErrorCode::input, "exit code 99");
}

}  // namespace
}  // namespace ballast::control_frames_test
