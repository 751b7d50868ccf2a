// Built where the SentencePiece library is installed.

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <fstream>
#include <random>

#include "data/tokenizer.h"
#include "io/utf8.h"
#include "tests/support/temp_dir.h"

namespace ballast::data::sentencepiece_library_test {
namespace {

struct Alphabet {
  char32_t first, last;
};
// Latin, accents, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai, kana, Han, Hangul, full width,
// half-width kana, marks, ligatures, symbols, emoji, spaces, the odd ones.
constexpr Alphabet kAlphabets[] = {
    {'a', 'z'},         {'A', 'Z'},       {' ', '@'},       {0xa0, 0x17f},    {0x370, 0x3ff},
    {0x400, 0x45f},     {0x5d0, 0x5ea},   {0x620, 0x64a},   {0x905, 0x950},   {0xe01, 0xe3a},
    {0x3041, 0x30ff},   {0x4e00, 0x4eff}, {0xac00, 0xacff}, {0xff01, 0xff5e}, {0xff61, 0xff9f},
    {0x300, 0x36f},     {0xfb00, 0xfb06}, {0x2000, 0x2028}, {0x2070, 0x21ff}, {0x2460, 0x24ff},
    {0x1f300, 0x1f64f}, {0x2581, 0x2581}, {0xfdd0, 0xfdfb}, {1, 0x1f},
};

class TextSource {
 public:
  explicit TextSource(unsigned seed) : random_(seed) {}

  std::string words(int most) {
    std::string text;
    for (auto n = random_() % static_cast<unsigned>(most); n-- > 0;) {
      const Alphabet& a =
          kAlphabets[random_() % 5 == 0 ? random_() % std::size(kAlphabets) : random_() % 3];
      for (auto letters = random_() % 7; letters-- > 0;) {
        append_utf8(text, a.first + static_cast<char32_t>(random_() % (a.last - a.first + 1)));
      }
      if (random_() % 4 != 0) text += random_() % 6 == 0 ? "  " : " ";
      if (random_() % 64 == 0) text += static_cast<char>(random_());  // mostly malformed
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

// Words that repeat, so that there is something to learn.
std::string training_text() {
  TextSource source(1);
  std::vector<std::string> lines;
  for (int i = 0; i < 150; ++i) {
    std::string line = source.words(12);
    std::erase_if(line, [](char c) { return c == '\0' || c == '\n' || c == '\r'; });
    if (first_invalid_utf8(line)) continue;
    lines.push_back(line);
  }
  std::mt19937 random(2);
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += lines[random() % lines.size()] + " " + lines[random() % lines.size() / 3] + "\n";
  }
  return text;
}

struct Training {
  std::string name, flags;
};
void PrintTo(const Training& t, std::ostream* out) { *out << t.name; }

class SentencePieceLibrary : public ::testing::TestWithParam<Training> {};

TEST_P(SentencePieceLibrary, GivesTheSameIdsAndTexts) {
  const test::TempDir dir;
  const std::string text = dir.write("text", training_text());
  const auto trained = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + text + " --model_prefix=" + dir.path("spiece") +
      " --model_type=unigram --minloglevel=2 --num_threads=1 --pad_id=0 --eos_id=1 --unk_id=2"
      " --bos_id=-1 --num_sub_iterations=1 --hard_vocab_limit=false " +
      GetParam().flags);
  ASSERT_TRUE(trained.ok()) << trained.ToString();
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(dir.path("spiece.model")).ok());
  const Tokenizer tokenizer = Tokenizer::open(dir.path("spiece.model"));
  ASSERT_EQ(tokenizer.vocab_size(), library.GetPieceSize());

  TextSource source(3);
  std::size_t ids_seen = 0, unknown = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::string sample = source.words(16);
    const std::vector<std::int32_t> ids = tokenizer.encode(sample);
    const std::vector<int> expected = library.EncodeAsIds(sample);
    ASSERT_EQ(ids, expected) << i << ": " << sample;
    ASSERT_EQ(tokenizer.decode(ids), library.DecodeIds(expected)) << i << ": " << sample;
    ids_seen += ids.size();
    for (const std::int32_t id : ids) unknown += id == tokenizer.unk_id() ? 1 : 0;
  }
  EXPECT_GT(ids_seen, 100'000u) << "the texts say nothing";
  EXPECT_LT(unknown * 2, ids_seen);
}

INSTANTIATE_TEST_SUITE_P(
    Data, SentencePieceLibrary,
    ::testing::Values(Training{"Plain", "--vocab_size=1000 --character_coverage=0.98"},
                      Training{"Bytes",
                               "--vocab_size=1200 --character_coverage=0.98 --byte_fallback=true"
                               " --user_defined_symbols=<a>,zz,▁q"}),
    [](const auto& training) { return training.param.name; });

}  // namespace
}  // namespace ballast::data::sentencepiece_library_test
