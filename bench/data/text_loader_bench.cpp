// Samples a second of texts of 100 tokens: from JSON Lines to a token cache, and from the cache to
// padded batches. 20,000 on two cores is the goal of both.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/random.h"
#include "core/to_size.h"
#include "data/pair_batches.h"
#include "tests/support/temp_dir.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kWords = 31'000, kSamples = 20'000, kTokens = 100;

// Words of five to eight letters, most of them in two pieces, as in a real vocabulary.
std::string piece(std::int64_t i) {
  std::string text;
  for (std::int64_t n = i + 7; n > 0; n /= 21) text += static_cast<char>('a' + n % 21);
  return text;
}

struct Texts {
  Texts() {
    std::string vocab = R"(["<pad>",0],["</s>",0],["<unk>",0])";
    for (std::int64_t i = 0; i < kWords; ++i) {
      vocab += fmt::format(R"(,["{}{}",{}])", i % 2 == 0 ? "▁" : "", piece(i),
                           -3 - 1e-4 * static_cast<double>(i));
    }
    dir.write("tokenizer.json",
              fmt::format(R"({{"added_tokens":[{{"id":1,"content":"</s>","special":true}}],)"
                          R"("pre_tokenizer":{{"type":"Sequence","pretokenizers":[)"
                          R"({{"type":"WhitespaceSplit"}},{{"type":"Metaspace","replacement":"▁",)"
                          R"("prepend_scheme":"always"}}]}},"model":{{"type":"Unigram","unk_id":2,)"
                          R"("vocab":[{}]}}}})",
                          vocab));
    const RandomSource words = random_source(1, "bench", 0, "words");
    std::string lines;
    std::uint64_t next = 0;
    for (std::int64_t s = 0; s < kSamples; ++s) {
      const auto text = [&](std::int64_t pieces) {
        std::string t;
        for (std::int64_t k = 0; k < pieces; k += 2) {
          const auto word = [&] { return words.word(next++) % (kWords / 2) * 2; };
          t += fmt::format("{}{}{}", k > 0 ? " " : "", piece(static_cast<std::int64_t>(word())),
                           piece(static_cast<std::int64_t>(word() + 1)));
        }
        return t;
      };
      lines += fmt::format("{{\"input\": \"{}\", \"output\": \"{}\"}}\n", text(kTokens * 3 / 4),
                           text(kTokens / 4));
    }
    file = dir.write("texts.jsonl", lines);
    tokenizer.emplace(Tokenizer::open(dir.path()));
  }
  TokenCache cache(int threads) const {
    return make_token_cache(file, *tokenizer, {}, dir.path("cache"), threads);
  }

  const test::TempDir dir{"/tmp"};
  std::string file;
  std::optional<Tokenizer> tokenizer;
};

const Texts& texts() {
  static const Texts all;
  return all;
}

void report(benchmark::State& state, const TokenCache& cache) {
  std::int64_t tokens = 0;
  for (std::int64_t s = 0; s < cache.samples(); ++s) {
    tokens += cache.length(s).source + cache.length(s).target;
  }
  state.SetItemsProcessed(state.iterations() * cache.samples());
  state.SetLabel(fmt::format("{} tokens a sample", tokens / cache.samples()));
}

void tokenise(benchmark::State& state) {
  std::optional<TokenCache> cache;
  for (auto _ : state) {
    std::filesystem::remove_all(texts().dir.path("cache"));
    cache.emplace(texts().cache(static_cast<int>(state.range(0))));
  }
  report(state, *cache);
}
// CPU is the time of all threads: where other work shares the processors, 20,000 a second on two of
// them means 2 s of CPU for these 20,000 samples at most.
BENCHMARK(tokenise)
    ->Arg(1)
    ->Arg(2)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

void padded_batches(benchmark::State& state) {
  const TokenCache cache = texts().cache(2);
  const BatchOptions options = {.batch = 8};
  const auto ladder = shape_ladder(cache.longest(), {});
  const auto rows = to_size(8 * cache.longest().source),
             targets = to_size(8 * cache.longest().target);
  std::vector<std::int32_t> source(rows), lengths(8), input(targets), labels(targets);
  std::int64_t epoch = 0;
  for (auto _ : state) {
    const auto order = epoch_order(cache, options, ++epoch);
    for (std::int64_t s = 0; s < steps_per_epoch(cache.samples(), options); ++s) {
      const auto samples = samples_of_step(order, options, s);
      const PairLength shape = ladder[shape_for(ladder, needed_shape(cache, samples))];
      const auto S = to_size(8 * shape.source), T = to_size(8 * shape.target);
      read_batch(cache, samples, shape, 0, 0,
                 {.source = std::span(source).first(S),
                  .source_lengths = lengths,
                  .decoder_input = std::span(input).first(T),
                  .labels = std::span(labels).first(T)});
    }
  }
  report(state, cache);
}
BENCHMARK(padded_batches)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace ballast::data
