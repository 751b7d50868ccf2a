#include "data/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/to_size.h"
#include "data/tokenizer_file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_file.h"
#include "tests/support/tiny_tokenizer.h"

namespace ballast::data::tokenizer_test {
namespace {

using test::TempDir;
using test::TestModel;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Ids = std::vector<std::int32_t>;

struct Piece {
  std::size_t id;
  const char* text;
  double score;
};

// The pieces of T5's vocabulary that the golden vectors use, where they stand in it; the places
// between are filled with what no text holds.
constexpr Piece kT5Pieces[] = {
    {0, "<pad>", 0},
    {1, "</s>", 0},
    {2, "<unk>", 0},
    {3, "▁", -2.01},
    {5, ".", -3.54},
    {9, "a", -4.10},
    {10, ":", -4.41},
    {12, "▁to", -4.45},
    {16, "▁in", -4.81},
    {19, "▁is", -5.28},
    {21, "▁for", -5.39},
    {24, "▁that", -5.58},
    {25, "▁you", -5.60},
    {37, "▁The", -5.99},
    {43, "▁have", -6.27},
    {53, "ing", -6.38},
    {192, "▁two", -7.87},
    {207, "▁good", -7.94},
    {209, "▁1", -7.95},
    {293, "▁own", -8.28},
    {629, "▁house", -9.07},
    {1399, "▁fine", -9.79},
    {1566, "▁English", -9.89},
    {1627, "▁wonderful", -9.93},
    {1782, "▁dog", -10.02},
    {2008, "▁shown", -10.14},
    {2116, "▁studies", -10.20},
    {2447, "▁park", -10.32},
    {2968, "▁German", -10.50},
    {4043, "▁Full", -10.79},
    {4856, "▁spaces", -10.97},
    {8774, "▁Hello", -11.56},
    {10681, "▁walks", -11.76},
    {11949, "▁café", -11.88},
    {13959, "▁translate", -12.06},
    {21603, "▁summarize", -12.66},
};

// Those of the NMT-NFKC rules that the golden vectors use, and one that shortest and longest match
// see differently: a half-width kana with its voicing mark.
std::string t5_charsmap() {
  return test::charsmap({{"ﬁ", "fi"},
                         {"①", "1"},
                         {"e\u0301", "é"},
                         {"Ｆ", "F"},
                         {"ｕ", "u"},
                         {"ｌ", "l"},
                         {"ｶ", "カ"},
                         {"ｶﾞ", "ガ"}});
}

std::string t5_json(std::string_view normalizer, std::string_view pre_tokenizer) {
  std::string vocab;
  std::size_t next = 0;
  for (const Piece& p : kT5Pieces) {
    for (; next < p.id; ++next) vocab += fmt::format("[\"\\u0001{}\",-13.5],", next);
    vocab += fmt::format("[\"{}\",{}],", p.text, p.score);
    ++next;
  }
  for (; next < 32000; ++next) vocab += fmt::format("[\"\\u0001{}\",-13.5],", next);
  vocab.pop_back();
  std::string added;
  for (int n = 0; n < 100; ++n) {
    added += fmt::format(
        R"({{"id":{},"content":"<extra_id_{}>","single_word":false,"lstrip":false,"rstrip":false,)"
        R"("normalized":false,"special":true}},)",
        32099 - n, n);
  }
  added += R"({"id":0,"content":"<pad>"},{"id":1,"content":"</s>"},{"id":2,"content":"<unk>"})";
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{}],"normalizer":{},)"
      R"("pre_tokenizer":{},"post_processor":null,"decoder":null,)"
      R"("model":{{"type":"Unigram","unk_id":2,"vocab":[{}]}}}})",
      added, normalizer, pre_tokenizer, vocab);
}

std::string precompiled() {
  return fmt::format(R"({{"type":"Precompiled","precompiled_charsmap":"{}"}})",
                     test::base64(t5_charsmap()));
}

// T5 and FLAN-T5 as they were published, and as ComfyUI ships it.
std::string original_json() {
  return t5_json(precompiled(),
                 R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
                 R"({"type":"Metaspace","replacement":"▁","add_prefix_space":true}]})");
}
// The files of 2020 do not say what their model is: a list of pieces with scores is unigram.
std::string untyped_json() {
  constexpr std::string_view kType = R"("type":"Unigram",)";
  std::string text = original_json();
  return text.erase(text.find(kType), kType.size());
}
std::string resaved_json() {
  return t5_json(
      fmt::format(R"({{"type":"Sequence","normalizers":[{},{{"type":"Strip","strip_left":false,)"
                  R"("strip_right":true}},{{"type":"Replace","pattern":{{"Regex":" {{2,}}"}},)"
                  R"("content":"▁"}}]}})",
                  precompiled()),
      R"({"type":"Metaspace","replacement":"▁","add_prefix_space":true,"prepend_scheme":"first"})");
}

Tokenizer open_text(const TempDir& dir, const std::string& name, const std::string& text) {
  return Tokenizer::open(dir.write(name, text));
}

constexpr std::size_t kLong = 512;

TEST(Tokenizer, GivesTheGoldenIdsOfT5) {
  const TempDir dir;
  struct Golden {
    const char* text;
    Ids always, first;
  };
  const Golden cases[] = {
      {"translate English to German: The house is wonderful.",
       {13959, 1566, 12, 2968, 10, 37, 629, 19, 1627, 5, 1},
       {}},
      {"Hello <extra_id_0>.", {8774, 32099, 3, 5, 1}, {8774, 32099, 5, 1}},
      {"The <extra_id_0> walks in <extra_id_1> park", {37, 32099, 10681, 16, 32098, 2447, 1}, {}},
      {"summarize: studies have shown that owning a dog is good for you",
       {21603, 10, 2116, 43, 2008, 24, 293, 53, 3, 9, 1782, 19, 207, 21, 25, 1},
       {}},
      {"  two   spaces  ", {192, 4856, 1}, {}},
      {"ﬁne ① café cafe\u0301 Ｆｕｌｌ", {1399, 209, 11949, 11949, 4043, 1}, {}},
      {"日本語 🦙", {3, 2, 3, 2, 1}, {}},
      {"", {1}, {}},
  };
  const Tokenizer original = open_text(dir, "original/tokenizer.json", original_json());
  const Tokenizer untyped = open_text(dir, "untyped/tokenizer.json", untyped_json());
  const Tokenizer resaved = open_text(dir, "resaved/tokenizer.json", resaved_json());
  for (const Golden& c : cases) {
    EXPECT_THAT(untyped.encode(c.text, kLong), ElementsAreArray(c.always)) << c.text;
    EXPECT_THAT(original.encode(c.text, kLong), ElementsAreArray(c.always)) << c.text;
    const Ids& first = c.first.empty() ? c.always : c.first;
    EXPECT_THAT(resaved.encode(c.text, kLong), ElementsAreArray(first)) << c.text;
  }
  EXPECT_EQ(original.vocab_size(), 32100);
  EXPECT_EQ(original.unk_id(), 2);
  EXPECT_EQ(original.eos_id(), 1);
  EXPECT_EQ(original.pad_id(), 0);
  EXPECT_EQ(original.find("<extra_id_0>"), 32099);
  EXPECT_EQ(original.find("▁house"), 629);
  EXPECT_EQ(original.find("house"), std::nullopt);
}

TEST(Tokenizer, KeepsTheEndWhenItTruncates) {
  const TempDir dir;
  const Tokenizer t = open_text(dir, "tokenizer.json", original_json());
  const char* text = "The house is wonderful.";
  EXPECT_THAT(t.encode(text, 6), ElementsAre(37, 629, 19, 1627, 5, 1));
  EXPECT_THAT(t.encode(text, 3), ElementsAre(37, 629, 1));
  EXPECT_THAT(t.encode(text, 1), ElementsAre(1));
  EXPECT_THAT(t.encode(text), ElementsAre(37, 629, 19, 1627, 5));
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  const TempDir dir;
  const Tokenizer t = open_text(dir, "tokenizer.json", original_json());
  EXPECT_EQ(t.decode(t.encode("The house is wonderful.", kLong)), "The house is wonderful.");
  EXPECT_EQ(t.decode(Ids{0, 37, 32099, 629, 1, 0, 99999, -5}), "The house");
}

// {2,} spaces -> one, U+2581 always, <unk> at 3: nothing is normalised.
TEST(Tokenizer, FollowsTheFileOfUmt5) {
  const TempDir dir;
  const std::string json =
      R"({"added_tokens":[{"id":0,"content":"<pad>"},{"id":1,"content":"</s>"},)"
      R"({"id":9,"content":"<x>","lstrip":true,"rstrip":true}],)"
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Replace",)"
      R"("pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace",)"
      R"("replacement":"▁","prepend_scheme":"always","split":true},"model":{"vocab":)"
      R"([["<pad>",0],["</s>",0],["<s>",0],["<unk>",0],["▁",-2],["▁a",-3],["b",-4],["ab",-5.5],)"
      R"(["ﬁ",-6]],"unk_id":3,"byte_fallback":false,"type":"Unigram"}})";
  const Tokenizer t = open_text(dir, "tokenizer.json", json);
  EXPECT_THAT(t.encode("a  b"), ElementsAre(5, 4, 6));
  EXPECT_THAT(t.encode("ab   ﬁ"), ElementsAre(5, 6, 4, 8));
  EXPECT_THAT(t.encode("  "), ElementsAre(4));
  EXPECT_THAT(t.encode("日本b🦙"), ElementsAre(4, 3, 6, 3)) << "runs of unknown are one";
  EXPECT_THAT(t.encode("b <x> b"), ElementsAre(4, 6, 9, 4, 6)) << "spaces beside <x> go";
  EXPECT_THAT(t.encode("b\xff"), ElementsAre(4, 6, 3)) << "a malformed byte is U+FFFD";
  EXPECT_EQ(t.vocab_size(), 10);
}

TestModel tiny_model() {
  return {.pieces = {{"<pad>", 0, 3},
                     {"</s>", 0, 3},
                     {"<unk>", 0, 2},
                     {"▁", -2},
                     {"▁a", -3},
                     {"b", -4},
                     {"ab", -3},
                     {"▁ab", -9},
                     {"never", -1, 5},
                     {"<user>", 0, 4}}};
}

TEST(Tokenizer, FollowsASentencePieceModel) {
  const TempDir dir;
  const std::string path = dir.write("spiece.model", test::sentencepiece_file(tiny_model()));
  const Tokenizer t = Tokenizer::open(path);
  EXPECT_THAT(t.encode("a b"), ElementsAre(4, 3, 5));
  EXPECT_THAT(t.encode("  a   b  "), ElementsAre(4, 3, 5)) << "extra spaces go";
  EXPECT_THAT(t.encode("ab"), ElementsAre(3, 6)) << "-5 is more than -7 and -9";
  EXPECT_THAT(t.encode("日本 b"), ElementsAre(3, 2, 3, 5));
  EXPECT_THAT(t.encode("b<user>b"), ElementsAre(3, 5, 9, 5));
  EXPECT_THAT(t.encode(""), ElementsAre());
  EXPECT_THAT(t.encode("   "), ElementsAre());
  EXPECT_EQ(t.decode(t.encode("a ab b")), "a ab b");
  EXPECT_EQ(t.decode(Ids{4, 2, 5}), "a \u2047 b");
  EXPECT_EQ(t.vocab_size(), 10);
  EXPECT_THAT(t.encode("b<extra_id_0>"), ElementsAre(3, 5, 2)) << "no configuration, no sentinels";

  // With the configuration of a Hugging Face folder beside it.
  dir.write("tokenizer_config.json", R"({"extra_ids":3,"legacy":true})");
  const Tokenizer legacy = Tokenizer::open(dir.path());
  EXPECT_THAT(legacy.encode("b <extra_id_0>b"), ElementsAre(3, 5, 12, 3, 5));
  dir.write("tokenizer_config.json", R"({"extra_ids":3,"legacy":false})");
  const Tokenizer current = Tokenizer::open(dir.path());
  EXPECT_THAT(current.encode("b <extra_id_2>b"), ElementsAre(3, 5, 10, 5));
  EXPECT_EQ(current.vocab_size(), 13);
}

TEST(Tokenizer, SpellsUnknownCharactersInBytesWhereTheModelDoes) {
  TestModel model = tiny_model();
  model.byte_fallback = true;
  for (int b = 0; b < 256; ++b) model.pieces.push_back({fmt::format("<0x{:02X}>", b), 0, 6});
  const TempDir dir;
  const Tokenizer t = open_text(dir, "spiece.model", test::sentencepiece_file(model));
  EXPECT_THAT(t.encode("bé"), ElementsAre(3, 5, 10 + 0xc3, 10 + 0xa9));
  EXPECT_EQ(t.decode(t.encode("bé 日b")), "bé 日b");
}

TEST(Tokenizer, TakesTheLongestRuleOfASentencePieceModelAndTheShortestOfAJson) {
  TestModel model = tiny_model();
  model.charsmap = t5_charsmap();
  model.pieces.push_back({"ガ", -5});
  model.pieces.push_back({"カ", -5});
  const TempDir dir;
  const Tokenizer longest = open_text(dir, "spiece.model", test::sentencepiece_file(model));
  EXPECT_THAT(longest.encode("ｶﾞ"), ElementsAre(3, 10));
  const std::string json =
      fmt::format(R"({{"normalizer":{},"model":{{"type":"Unigram","unk_id":1,)"
                  R"("vocab":[["</s>",0],["<unk>",0],["ガ",-1],["カ",-1],["ﾞ",-1]]}}}})",
                  precompiled());
  const Tokenizer shortest = open_text(dir, "tokenizer.json", json);
  EXPECT_THAT(shortest.encode("ｶﾞ"), ElementsAre(3, 4)) << "six bytes: character by character";
}

// The best of all segmentations, tried one by one.
double best_score(std::string_view text, const TestModel& model, double unknown) {
  if (text.empty()) return 0;
  double best = unknown + best_score(text.substr(1), model, unknown);
  for (const test::TestPiece& p : model.pieces) {
    if (p.type == 1 && text.starts_with(p.text)) {
      const double rest = best_score(text.substr(p.text.size()), model, unknown);
      best = std::max(best, static_cast<double>(p.score) + rest);
    }
  }
  return best;
}

TEST(Unigram, FindsTheBestOfAllSegmentations) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    TestModel model = {.pieces = {{"<unk>", 0, 2}, {"</s>", 0, 3}},
                       .normalizer = test::proto_number(3, 0)};
    std::map<std::string, bool> seen;
    for (int i = 0; i < 12; ++i) {
      std::string piece;
      for (auto n = 1 + random() % 4; n > 0; --n) {
        piece += static_cast<char>('a' + random() % 3);
      }
      if (!seen.try_emplace(piece).second) continue;
      model.pieces.push_back({piece, -static_cast<float>(random() % 64) / 4 - 1});
    }
    float least = 0;
    for (const auto& p : model.pieces) least = std::min(least, p.score);
    std::string text;
    for (int i = 0; i < 9; ++i) text += static_cast<char>('a' + random() % 3);
    const TempDir dir;
    const Tokenizer t = open_text(dir, "m.model", test::sentencepiece_file(model));
    double found = 0;
    std::size_t covered = 0;
    for (const std::int32_t id : t.encode(text)) {
      if (id == 0) continue;
      found += static_cast<double>(model.pieces[to_size(id)].score);
      covered += model.pieces[to_size(id)].text.size();
    }
    const double unknown = static_cast<double>(least) - 10;
    found += static_cast<double>(text.size() - covered) * unknown;
    EXPECT_DOUBLE_EQ(found, best_score(text, model, unknown)) << text;
  }
}

TEST(Tokenizer, SaysWhatAFolderLacks) {
  const TempDir dir;
  EXPECT_FAILS(Tokenizer::open(dir.path()), ErrorCode::input, "tok.folder");
  EXPECT_FAILS(Tokenizer::open(dir.path("absent.json")), ErrorCode::io, "absent.json");
  dir.write("google/umt5-xxl/spiece.model", test::sentencepiece_file(tiny_model()));
  EXPECT_EQ(Tokenizer::open(dir.path()).vocab_size(), 10);
}

// As ComfyUI's files of text encoders have it.
TEST(Tokenizer, IsReadOutOfATextEncodersFile) {
  const TempDir dir;
  const std::string model = test::sentencepiece_file(tiny_model());
  const auto size = static_cast<std::int64_t>(model.size());
  const std::string file = support::TensorFile()
                               .add("shared.weight", DType::f32, {4}, 1)
                               .add_bytes("spiece_model", FileDType::u8, {size}, model)
                               .write(dir, "umt5.safetensors");
  const Tokenizer inside = Tokenizer::open(file);
  const Tokenizer beside = Tokenizer::open(dir.write("spiece.model", model));
  EXPECT_EQ(inside.vocab_size(), beside.vocab_size());
  EXPECT_EQ(inside.encode("a dog"), beside.encode("a dog"));
  EXPECT_EQ(tokenizer_bytes(file), model.size());
  EXPECT_EQ(tokenizer_bytes(dir.path("spiece.model")), model.size());
  const std::string none =
      support::TensorFile().add("shared.weight", DType::f32, {4}, 1).write(dir, "t5.safetensors");
  EXPECT_FAILS(Tokenizer::open(none), ErrorCode::input, "holds no tokenizer");
}

}  // namespace
}  // namespace ballast::data::tokenizer_test
