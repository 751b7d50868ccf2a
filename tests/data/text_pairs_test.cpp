#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/to_size.h"
#include "data/pair_batches.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::data {
namespace {

using test::TempDir;
using ::testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

std::vector<TextPair> pairs_in(const std::string& path, const TextPairOptions& options = {}) {
  RecordReader reader = RecordReader::open(path);
  RawRecord record;
  std::vector<TextPair> all;
  if (!reader.next(record)) return all;
  const PairColumns columns(options, reader.format(), record, path);
  bool more = reader.format() == RecordFormat::json_lines || reader.next(record);
  for (; more; more = reader.next(record)) all.push_back(columns.parse(record));
  EXPECT_EQ(reader.done(), reader.size());
  return all;
}

class TextPairs : public ::testing::Test {
 protected:
  std::vector<TextPair> read(const std::string& name, const std::string& text,
                             const TextPairOptions& options = {}) const {
    return pairs_in(dir_.write(name, text), options);
  }
  const TempDir dir_;
};

TEST_F(TextPairs, TellsAFilesColumnsFromTheUsers) {
  EXPECT_FAILS(read("a.csv", ",,p\n"), ErrorCode::input, "two columns have the same name");
  EXPECT_FAILS(read("b.csv", "a,b\n", {.source_column = "b", .target_column = "b"}),
               ErrorCode::usage, "column b is both source and target");
}

TEST_F(TextPairs, ReadsJsonLinesUnderAnyOfTheirNames) {
  auto p = read("a.jsonl",
                "\xEF\xBB\xBF{\"id\": 3, \"input\": \"a\\nb\", \"output\": \"c\"}\r\n\n  \n"
                "{\"output\": \"é\", \"quality_score\": 0.25, \"x\": [1, {}], \"input\": null}");
  ASSERT_EQ(p.size(), 2u);
  EXPECT_EQ(p[0].source, "a\nb");
  EXPECT_EQ(p[0].target, "c");
  EXPECT_EQ(p[0].quality, 1);
  EXPECT_EQ(p[1].source, "");
  EXPECT_EQ(p[1].target, "é");
  EXPECT_EQ(p[1].quality, 0.25);
  p = read("b.json", R"({"input": "a", "target": "t", "other": "o"})");
  EXPECT_EQ(p[0].target, "t");
  p = read("c.json", R"({"n": 1, "article": "a", "highlights": "h"})", {.source_prefix = "sum: "});
  EXPECT_EQ(p[0].source, "sum: a");
  EXPECT_EQ(p[0].target, "h");
  p = read("d.json", R"({"input": "a", "output": "b", "long": "c"})",
           {.source_column = "long", .target_column = "input"});
  EXPECT_EQ(p[0].source, "c");
  EXPECT_EQ(p[0].target, "a");
}

TEST_F(TextPairs, ReadsQuotedFieldsOfCsv) {
  const auto p = read("a.csv",
                      "text,summary,quality_score\r\n"
                      "\"one, \"\"two\"\"\nthree\",x,0.5\r\n"
                      "plain,,\n"
                      "a,\"last\",1");
  ASSERT_EQ(p.size(), 3u);
  EXPECT_EQ(p[0].source, "one, \"two\"\nthree");
  EXPECT_EQ(p[0].quality, 0.5);
  EXPECT_EQ(p[1].target, "");
  EXPECT_EQ(p[2].target, "last");
  EXPECT_EQ(read("a.tsv", "q\ta\nwho, me\tyes\n")[0].source, "who, me");
  EXPECT_EQ(
      read("b.csv", "id,q,a\n1,2,3\n", {.source_column = "q", .target_column = "a"})[0].target,
      "3");
}

TEST_F(TextPairs, NamesTheLineOfABrokenRecord) {
  const std::string good = R"({"input": "a", "output": "b"})"
                           "\n";
  const auto fails = [&](const std::string& name, const std::string& text, const char* line,
                         const char* what) {
    const auto error = test::error_of([&] { read(name, text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
    EXPECT_THAT(error->what(), ::testing::HasSubstr(line));
    EXPECT_THAT(error->what(), ::testing::HasSubstr(what));
  };
  fails("a.jsonl", good + "\n{\"input\": \"a\", \"output\": ", "line 3", "");
  fails("a.jsonl", good + R"({"input": "a", "output": "b"} x)", "line 2", "");
  fails("a.jsonl", good + R"({"input": "a"})", "line 2", "no output");
  fails("a.jsonl", good + R"({"input": 7, "output": "b"})", "line 2", "a text was expected");
  fails("a.jsonl", good + "{\"input\": \"\xff\", \"output\": \"b\"}", "line 2", "");
  fails("a.jsonl", "[{\"input\": \"a\"}]", "line 1", "one object on every line");
  fails("a.jsonl", R"({"input": "a"})", "line 1", "two columns");
  fails("a.jsonl", R"({"article": "a", "words": 7})", "line 1", "it has article, words");
  fails("a.jsonl", good + std::string(40, '['), "line 2", "as JSON: expected an object");
  fails("a.jsonl", good + R"({"input": "a", "output": "b", "quality_score": "good"})", "line 2",
        "quality_score is a string, a number was expected");
  fails("a.csv", "a,b\n\"x\ny\",1\n\n2,3,4\n", "line 5", "3 fields, the header has 2");
  fails("a.csv", "a,b\n1,2\n\"never closed,3\n4,5\n", "line 3", "not closed");
  fails("a.csv", "a,b\n\"x\"y,2\n", "line 2", "closing quote");
  fails("a.csv", "a,b\nx\"y\",2\n", "line 2", "a quote inside");
  fails("a.csv", ",,,\n1,2,3,4\n", "line 1", "two columns have the same name, \"\"");
  fails("a.csv", "a,b\n\xff,2\n", "line 2", "UTF-8");
  fails("a.csv", "a,b,quality_score\n1,2,good\n", "line 2", "no number");
  EXPECT_FAILS(read("a.csv", "alpha,beta\n1,2\n", {.source_column = "alpah"}), ErrorCode::input,
               "alpha");
  const auto advice = [&](const char* text) {
    return test::error_of([&] { read("a.jsonl", text); })->advice()[0].change;
  };
  EXPECT_THAT(advice(R"({"input": "a"})"), ::testing::HasSubstr("--text_column"));
  EXPECT_THAT(advice("[\n"), ::testing::HasSubstr("jq -c"));
}

class TokenCaches : public ::testing::Test {
 protected:
  TokenCache make(const std::string& text, TokenOptions options = {}, int threads = 2,
                  const std::string& name = "train.jsonl") const {
    return make_token_cache(dir_.write(name, text), tokenizer_, options, dir_.path("cache"),
                            threads);
  }
  static std::string line(const std::string& source, const std::string& target) {
    return fmt::format("{{\"input\": \"{}\", \"output\": \"{}\"}}\n", source, target);
  }
  static std::pair<Ids, Ids> sample(const TokenCache& cache, std::int64_t i) {
    const PairLength n = cache.length(i);
    Ids source(to_size(n.source)), target(to_size(n.target));
    cache.read(i, source, target);
    return {source, target};
  }
  std::size_t files() const {
    return to_size(std::distance(std::filesystem::directory_iterator(dir_.path("cache")), {}));
  }

  const TempDir dir_;
  const Tokenizer tokenizer_ =
      Tokenizer::open(dir_.write("tokenizer.json", support::tiny_tokenizer_json()));
};

TEST_F(TokenCaches, HoldTheTokensOfEveryGoodRecordInOrder) {
  std::string text = line("say one two", "red") + line("", "red") +
                     R"({"input": "six", "output": "dog", "quality_score": 0.59})"
                     "\n";
  for (int i = 0; i < 300; ++i) text += line(support::tiny_words()[i % 10u], "cat");
  const TokenCache cache = make(text, {.max_source = 3}, 3);
  EXPECT_EQ(cache.samples(), 301);
  EXPECT_EQ(cache.counts().records, 303u);
  EXPECT_EQ(cache.counts().empty, 1u);
  EXPECT_EQ(cache.counts().low_quality, 1u);
  EXPECT_EQ(cache.counts().cut, 1u);
  EXPECT_EQ(cache.longest(), (PairLength{3, 2}));
  const auto first = sample(cache, 0);
  EXPECT_THAT(first.first, ElementsAre(18, 4, 1)) << "cut, </s> last";
  EXPECT_THAT(first.second, ElementsAre(13, 1));
  for (std::int64_t i = 1; i < 301; ++i) {
    ASSERT_THAT(sample(cache, i).first, ElementsAre(3 + (i - 1) % 10, 1));
  }
  const std::string bytes = test::read_whole(cache.path());
  std::filesystem::remove(cache.path());
  EXPECT_EQ(test::read_whole(make(text, {.max_source = 3}, 1).path()), bytes)
      << "as many threads as one likes";
}

TEST_F(TokenCaches, AreMadeAgainWhenTextsOrSettingsChangeOrTheFileIsBroken) {
  const std::string text = line("one", "two") + line("three", "four");
  const TokenCache first = make(text);
  const auto made = std::filesystem::last_write_time(first.path());
  EXPECT_EQ(std::filesystem::last_write_time(make(text).path()), made) << "used again";
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(make(text + line("six", "six")).samples(), 3);
  EXPECT_EQ(make(text, {.max_target = 1}).longest().target, 1);
  EXPECT_EQ(make(text, {.texts = {.source_prefix = "say "}}).longest().source, 3);
  EXPECT_EQ(files(), 4u);
  const std::string bytes = test::read_whole(first.path());
  for (std::size_t i = 0; i < bytes.size(); i += 5) {
    std::string broken = bytes;
    broken[i] = static_cast<char>(broken[i] ^ 0x20);
    dir_.write("broken.tokens", broken);
    EXPECT_FAILS(TokenCache::open(dir_.path("broken.tokens")), ErrorCode::input, "no whole");
    dir_.write("broken.tokens", bytes.substr(0, i));
    EXPECT_FAILS(TokenCache::open(dir_.path("broken.tokens")), ErrorCode::input, "no whole");
  }
  std::filesystem::resize_file(first.path(), 40);
  EXPECT_EQ(make(text).samples(), 2);
  EXPECT_FAILS(make(line("one", "")), ErrorCode::input, "1 have an empty column");
  EXPECT_FAILS(make("\n\n"), ErrorCode::input, "no record");
  EXPECT_FAILS(make(line("a", "b") + "{"), ErrorCode::input, "line 2");
  EXPECT_EQ(files(), 4u) << "nothing half made is left";
}

// Bytes that this thread has read from files so far.
std::uint64_t bytes_read() {
  std::ifstream io("/proc/thread-self/io");
  std::string name;
  std::uint64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// A broken record of a large file is found when it is reached, and a file is read once.
TEST_F(TokenCaches, AreMadeInOnePassOverTheTexts) {
  constexpr std::uint64_t kBytes = 64 << 20;
  const std::string texts = dir_.write("broken.jsonl", "{\n");
  std::filesystem::resize_file(texts, kBytes);
  std::uint64_t before = bytes_read();
  EXPECT_FAILS(make_token_cache(texts, tokenizer_, {}, dir_.path("cache"), 1), ErrorCode::input,
               "line 1");
  EXPECT_LT(bytes_read() - before, kBytes / 2);
  const std::string endless = dir_.write("endless.jsonl", "");
  std::filesystem::resize_file(endless, 10'000'000'000);
  EXPECT_FAILS(make_token_cache(endless, tokenizer_, {}, dir_.path("cache"), 1), ErrorCode::input,
               "line 1: a record of more than 16 MiB");
  std::string text;
  while (text.size() < (4 << 20)) text += line("say red " + std::string(10'000, 'x'), "red");
  before = bytes_read();
  const TokenCache cache = make(text, {.max_source = 4});
  EXPECT_LT(bytes_read() - before, text.size() * 3 / 2);
  EXPECT_EQ(cache.key(), token_cache_key(dir_.path("train.jsonl"), tokenizer_, {.max_source = 4}));
}

TEST_F(TokenCaches, NameASampleWhoseBytesChangeAfterTheyWereChecked) {
  const TokenCache cache =
      make(line("one two", "red") + line("three", "four") + line("six", "dog"));
  const std::string bytes = test::read_whole(cache.path());
  const auto source = to_size(cache.length(0).source + cache.length(0).target);
  for (std::size_t at = 2 * source; at < 2 * source + 8; ++at) {  // of the second sample
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    std::ofstream(cache.path(), std::ios::binary) << changed;
    EXPECT_FAILS(sample(cache, 1), ErrorCode::input, "sample 1 at byte");
    sample(cache, 0);
    sample(cache, 2);
  }
}

TEST_F(TokenCaches, GiveBatchesPaddedToTheLongest) {
  const TokenCache cache = make(line("say one two", "red blue") + line("six", "dog"));
  const std::vector<std::uint32_t> both = {1, 0};
  EXPECT_EQ(needed_shape(cache, both), (PairLength{4, 3}));
  EXPECT_EQ(label_count(cache, both), 5);
  Ids source(15), lengths(3), input(12), labels(12);
  read_batch(
      cache, both, {5, 4}, 0, 0,
      {.source = source, .source_lengths = lengths, .decoder_input = input, .labels = labels});
  EXPECT_THAT(source, ElementsAre(9, 1, 0, 0, 0, 18, 4, 5, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(lengths, ElementsAre(2, 4, 1));
  EXPECT_THAT(labels, ElementsAre(17, 1, -100, -100, 13, 14, 1, -100, -100, -100, -100, -100));
  EXPECT_THAT(input, ElementsAre(0, 17, 0, 0, 0, 13, 14, 0, 0, 0, 0, 0));
}

TEST_F(TokenCaches, GiveEveryEpochAnOrderOfItsOwn) {
  std::string text;
  for (int i = 0; i < 205; ++i) {
    std::string words = "one";
    for (int k = 0; k < i * 7 % 23; ++k) words += " two";
    text += line(words, "red");
  }
  const TokenCache cache = make(text);
  BatchOptions o = {.batch = 2, .accumulation = 2, .seed = 5};
  const auto first = epoch_order(cache, o, 1);
  EXPECT_EQ(first, epoch_order(cache, o, 1));
  EXPECT_NE(first, epoch_order(cache, o, 2));
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 205u);
  EXPECT_EQ(steps_per_epoch(cache.samples(), o), 52);
  EXPECT_EQ(samples_of_step(first, o, 51).size(), 1u);
  o.group_by_length = true;
  const auto grouped = epoch_order(cache, o, 1);
  EXPECT_EQ(std::set(grouped.begin(), grouped.end()).size(), 205u);
  const auto padding = [&](const std::vector<std::uint32_t>& order) {
    std::int64_t sum = 0;
    for (std::int64_t s = 0; s < 51; ++s) {
      const auto samples = samples_of_step(order, o, s);
      const std::int64_t longest = needed_shape(cache, samples).source;
      for (const std::uint32_t i : samples) sum += longest - cache.length(i).source;
    }
    return sum;
  };
  EXPECT_LT(padding(grouped) * 4, padding(first));
}

TEST(ShapeLadder, HoldsEverythingInAtMost32Shapes) {
  for (const PairLength longest : {PairLength{1, 1}, {512, 256}, {1021, 7}, {5, 300}}) {
    const auto ladder = shape_ladder(longest, {});
    EXPECT_LE(ladder.size(), kMaxShapes);
    EXPECT_EQ(ladder.back(), longest);
    for (std::int64_t s = 1; s <= longest.source; s += 3) {
      const PairLength shape = ladder[shape_for(ladder, {s, 1})];
      EXPECT_GE(shape.source, s);
      EXPECT_LE(shape.source, s + (longest.source + 7) / 8);
    }
  }
  for (const PairLength& s : shape_ladder({100, 33}, {.multiple = 8})) {
    EXPECT_EQ(s.source % 8, 0);
    EXPECT_EQ(s.target % 8, 0);
  }
  EXPECT_THAT(shape_ladder({100, 33}, {.multiple = 8, .to_longest = true}),
              ElementsAre(PairLength{104, 40}));
}

}  // namespace
}  // namespace ballast::data
