#include "nn/memory_policy.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "ops/kernels/token_quantum.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

TEST(MemoryPolicy, NamedOnesExistUnderTheirNames) {
  std::vector<std::string> names;
  for (const MemoryPolicy& p : named_policies()) names.push_back(p.name);
  EXPECT_THAT(names, testing::ElementsAre("resident", "stream1", "stream2", "stream4", "recompute",
                                          "keep-attention", "offload", "chunked", "grouped",
                                          "matrix-streaming", "split-backward", "state-on-disk"));
  for (const std::string& name : names) {
    ASSERT_TRUE(find_policy(name).has_value()) << name;
    EXPECT_EQ(find_policy(name)->name, name);
  }
  EXPECT_FALSE(find_policy("stream3").has_value());
  EXPECT_FALSE(find_policy("").has_value());
}

TEST(MemoryPolicy, NamedOnesDoWhatTheySay) {
  EXPECT_EQ(find_policy("resident")->streaming, std::nullopt);
  EXPECT_EQ(find_policy("stream1")->streaming->slots, 1);
  EXPECT_EQ(find_policy("stream2")->streaming->slots, 2);
  EXPECT_EQ(find_policy("stream4")->streaming->slots, 4);
  EXPECT_EQ(find_policy("recompute")->activations, Activations::recomputed);
  EXPECT_EQ(find_policy("keep-attention")->activations, Activations::attention_kept);
  EXPECT_TRUE(find_policy("offload")->offload);
  EXPECT_EQ(find_policy("chunked")->chunk_tokens, kTokenQuantum);
  EXPECT_EQ(find_policy("grouped")->heads_per_group, 1);
  EXPECT_EQ(find_policy("matrix-streaming")->streaming->matrices_ahead, 2);
  EXPECT_TRUE(find_policy("split-backward")->split_backward);
}

TEST(MemoryPolicy, OldNamesStillWork) {
  EXPECT_EQ(find_policy("parts")->name, "matrix-streaming");
  EXPECT_EQ(find_policy("halves")->name, "split-backward");
}

TEST(TokenChunks, CoverEveryTokenOnceAndStartAtMultiplesOfTheQuantum) {
  for (const std::int64_t tokens : {0, 1, 255, 256, 257, 512, 1000, 4096, 5000}) {
    for (const std::int64_t chunk : {std::int64_t{0}, kTokenQuantum, 3 * kTokenQuantum}) {
      std::int64_t next = 0;
      for (const TokenChunk& c : token_chunks({.chunk_tokens = chunk}, tokens)) {
        EXPECT_EQ(c.first, next);
        EXPECT_EQ(c.first % kTokenQuantum, 0);
        EXPECT_GT(c.rows, 0);
        EXPECT_LE(c.rows, chunk > 0 ? chunk : tokens);
        next += c.rows;
      }
      EXPECT_EQ(next, tokens) << "chunks of " << chunk;
    }
  }
  EXPECT_EQ(token_chunks({}, 5000).size(), 1u);
  EXPECT_EQ(token_chunks({.chunk_tokens = kTokenQuantum}, 2 * kTokenQuantum + 1).size(), 3u);
}

TEST(TokenChunks, RefuseOtherSizes) {
  EXPECT_FAILS(token_chunks({.chunk_tokens = kTokenQuantum + 1}, 1000), ErrorCode::internal,
               "multiples");
}

TEST(EvenlyChosen, PicksExactlyThatManyAtEvenDistances) {
  for (std::int64_t n = 1; n <= 45; ++n) {
    for (std::int64_t k = 0; k <= n; ++k) {
      std::vector<std::int64_t> chosen;
      for (std::int64_t i = 0; i < n; ++i) {
        if (evenly_chosen(i, n, k)) chosen.push_back(i);
      }
      ASSERT_EQ(static_cast<std::int64_t>(chosen.size()), k) << n;
      for (std::size_t i = 1; i < chosen.size(); ++i) {
        const std::int64_t gap = chosen[i] - chosen[i - 1];
        EXPECT_GE(gap, n / k);
        EXPECT_LE(gap, (n + k - 1) / k);
      }
    }
  }
  EXPECT_FALSE(evenly_chosen(0, 0, 3));
  EXPECT_TRUE(evenly_chosen(2, 3, 7));  // more than there are: all
}

}  // namespace
}  // namespace ballast
