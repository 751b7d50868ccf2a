#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "data/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_tokenizer.h"

namespace ballast::data::tokenizer_hostile_test {
namespace {

using namespace std::string_literals;
using test::proto_bytes;
using test::proto_number;
using test::proto_piece;
using test::TempDir;

struct Hostile {
  const char* name;
  std::string bytes;
  const char* rule;
};

// Three pieces that make a model, so that only what follows is wrong with it.
std::string enough() {
  return proto_piece({"<unk>", 0, 2}) + proto_piece({"</s>", 0, 3}) + proto_piece({"a", -1});
}
std::string trainer(const std::string& fields) { return enough() + proto_bytes(2, fields); }
std::string with_charsmap(const std::string& blob) {
  return enough() + proto_bytes(3, proto_bytes(2, blob));
}

std::vector<Hostile> sentencepiece_cases() {
  return {
      {"empty file", "", "spm.pieces"},
      {"zeros", std::string(64, '\0'), "spm.format"},
      {"a key that does not end", "\xff\xff", "spm.format"},
      {"a number of eleven bytes", std::string(11, '\xff'), "spm.format"},
      {"field number 0", proto_bytes(0, "x"), "spm.format"},
      {"a group", "\x0b", "spm.format"},
      {"a piece longer than the file", "\x0a\x7f" + "abc"s, "spm.format"},
      {"a piece of 2^63 bytes", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "spm.format"},
      {"a piece inside longer than its message", proto_bytes(1, "\x0a\x20x"), "spm.format"},
      {"a piece that is a number", enough() + proto_number(1, 5), "spm.format"},
      {"a score that is text", enough() + proto_bytes(1, proto_bytes(1, "b") + proto_bytes(2, "x")),
       "spm.format"},
      {"a score cut off", enough() + proto_bytes(1, proto_bytes(1, "b") + "\x15\x00\x00"s),
       "spm.format"},
      {"an empty piece", enough() + proto_piece({"", -1}), "spm.format"},
      {"a piece type of 9", enough() + proto_piece({"b", -1, 9}), "spm.format"},
      {"a piece that is not UTF-8", enough() + proto_piece({"\xc3\x28", -1}), "spm.limit"},
      {"a score of infinity", enough() + proto_piece({"b", 1.0f / 0.0f}), "spm.limit"},
      {"a score that is no number", enough() + proto_piece({"b", 0.0f / 0.0f}), "spm.limit"},
      {"a score of 1e30", enough() + proto_piece({"b", 1e30f}), "spm.limit"},
      {"a piece of 2,000 bytes", enough() + proto_piece({std::string(2000, 'b'), -1}), "spm.limit"},
      {"the same piece twice", enough() + proto_piece({"a", -2}), "spm.pieces"},
      {"no unknown piece", proto_piece({"</s>", 0, 3}) + proto_piece({"a", -1}), "spm.pieces"},
      {"two unknown pieces", enough() + proto_piece({"<u>", 0, 2}), "spm.pieces"},
      {"no end of text", proto_piece({"<unk>", 0, 2}) + proto_piece({"a", -1}), "spm.pieces"},
      {"a byte-pair model", trainer(proto_number(3, 2)), "spm.format"},
      {"byte fallback without bytes", trainer(proto_number(35, 1)), "spm.pieces"},
      {"a character map of two bytes", with_charsmap("ab"), "charsmap"},
      {"a trie larger than its map",
       with_charsmap("\xff\xff\xff\x7f"
                     "abcd"),
       "charsmap"},
      {"a trie of three bytes", with_charsmap("\x03\0\0\0abc\0"s), "charsmap"},
      {"no trie", with_charsmap("\0\0\0\0abc\0"s), "charsmap"},
      {"replacements without end", with_charsmap("\x04\0\0\0abcdef"s), "charsmap"},
      {"replacements that are not UTF-8", with_charsmap("\x04\0\0\0abcd\xff\0"s), "charsmap"},
  };
}

std::string json(std::string_view head, std::string_view vocab, std::string_view tail = "") {
  return fmt::format(R"({{{}"model":{{"type":"Unigram","unk_id":0,"vocab":{}}}{}}})", head, vocab,
                     tail);
}
constexpr std::string_view kVocab = R"([["<unk>",0],["</s>",0],["a",-1]])";

std::vector<Hostile> json_cases() {
  std::string deep = "[";
  for (int i = 0; i < 12; ++i) deep += deep;  // 4096 levels
  return {
      {"an open brace", "{", "tok.json"},
      {"no model", "{}", "tok.json"},
      {"text behind the end", json("", kVocab) + "x", "tok.json"},
      {"deep nesting", "{\"x\":" + deep, "tok.json"},
      {"deep normalizers",
       R"({"normalizer":{"normalizers":[{"normalizers":[{"normalizers":[{"normalizers":)"
       R"([{"normalizers":[{"normalizers":[]}]}]}]}]}]}})",
       "tok.json"},
      {"not UTF-8", "{\"\xff\":1}", "tok.json"},
      {"a model of another kind", R"({"model":{"type":"BPE","vocab":{}}})", "tok.unsupported"},
      {"a model without type and scores", R"({"model":{"unk_id":0,"vocab":{"a":0,"</s>":1}}})",
       "tok.unsupported"},
      {"a model without type and pieces", R"({"model":{"unk_id":0}})", "tok.json"},
      {"a type that is no text", R"({"model":{"type":7,"vocab":[["a",0]]}})", "tok.json"},
      {"two models", json("", kVocab, R"(,"model":{})"), "tok.json"},
      {"an empty vocabulary", json("", "[]"), "tok.json"},
      {"a vocabulary of numbers", json("", "[1,2]"), "tok.json"},
      {"a piece without score", json("", R"([["a"]])"), "tok.json"},
      {"a piece of three", json("", R"([["a",0,0]])"), "tok.json"},
      {"a score of 1e999", json("", R"([["a",1e999]])"), "tok.json"},
      {"a score of 1e300", json("", R"([["a",1e300]])"), "tok.limit"},
      {"unk_id past the vocabulary", json("", R"([["</s>",0]],"unk_id":7)"), "tok.json"},
      {"unk_id of -1", json("", R"([["</s>",0]],"unk_id":-1)"), "tok.json"},
      {"no end of text", json("", R"([["<unk>",0]])"), "tok.json"},
      {"an added token without id", json(R"("added_tokens":[{"content":"x"}],)", kVocab),
       "tok.json"},
      {"an added token with a huge id",
       json(R"("added_tokens":[{"id":2147483647,"content":"x"}],)", kVocab), "tok.json"},
      {"an added token far away",
       json(R"("added_tokens":[{"id":90000000,"content":"x"}],)", kVocab), "tok.json"},
      {"an added token that is a whole word",
       json(R"("added_tokens":[{"id":5,"content":"x","single_word":true}],)", kVocab),
       "tok.unsupported"},
      {"an unknown normalizer", json(R"("normalizer":{"type":"Lowercase"},)", kVocab),
       "tok.unsupported"},
      {"another expression",
       json(R"("normalizer":{"type":"Replace","pattern":{"Regex":"(a+)+$"},"content":""},)",
            kVocab),
       "tok.unsupported"},
      {"an empty pattern",
       json(R"("normalizer":{"type":"Replace","pattern":{"String":""},"content":"x"},)", kVocab),
       "tok.unsupported"},
      {"an unknown pre-tokenizer", json(R"("pre_tokenizer":{"type":"ByteLevel"},)", kVocab),
       "tok.unsupported"},
      {"a character map that is not base64",
       json(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"*"},)", kVocab),
       "tok.json"},
      {"a damaged character map",
       json(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"},)", kVocab),
       "charsmap"},
  };
}

TEST(HostileTokenizer, IsRefusedByName) {
  const TempDir dir;
  for (const auto& cases : {sentencepiece_cases(), json_cases()}) {
    for (const Hostile& c : cases) {
      SCOPED_TRACE(c.name);
      const std::string path = dir.write("hostile", c.bytes);
      EXPECT_FAILS(Tokenizer::open(path), ErrorCode::input, c.rule);
    }
  }
}

TEST(HostileTokenizer, AnswersDamageWithAnErrorOrWithIds) {
  const TempDir dir;
  const std::string map = test::charsmap({{"ﬁ", "fi"}, {"e\u0301", "é"}});
  const std::string good[] = {
      test::sentencepiece_file(
          {.pieces = {{"<unk>", 0, 2}, {"</s>", 0, 3}, {"▁", -1}, {"fi", -2}}, .charsmap = map}),
      json(fmt::format(R"("normalizer":{{"type":"Precompiled","precompiled_charsmap":"{}"}},)",
                       test::base64(map)),
           kVocab)};
  std::mt19937 random(5);
  int refused = 0, opened = 0;
  for (const std::string& file : good) {
    ASSERT_NO_THROW(Tokenizer::open(dir.write("good", file)));
    for (int i = 0; i < 600; ++i) {
      std::string bad = file;
      for (auto n = 1 + random() % 4; n-- > 0;) {
        bad[random() % (i % 2 == 0 ? bad.size() : std::min<std::size_t>(bad.size(), 200))] =
            static_cast<char>(random());
      }
      if (i % 3 == 0) bad.resize(random() % bad.size());
      const auto error = test::error_of([&] {
        const Tokenizer t = Tokenizer::open(dir.write("bad", bad));
        const auto ids = t.encode("ﬁ e\u0301 日本 \xff\xc3 <0x0A> fi");
        for (const std::int32_t id : ids) ASSERT_TRUE(id >= 0 && id < t.vocab_size());
        (void)t.decode(ids);
        ++opened;
      });
      if (!error) continue;
      ++refused;
      EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(opened, 40);
}

}  // namespace
}  // namespace ballast::data::tokenizer_hostile_test
