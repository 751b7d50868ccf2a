#include "plan/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ballast {
namespace {

// Most bytes alive at one instruction, counted one by one.
std::uint64_t most_alive(const std::vector<PackItem>& items) {
  std::uint64_t most = 0;
  for (const PackItem& at : items) {  // the live set grows only where an item begins
    std::uint64_t live = 0;
    for (const PackItem& i : items) {
      if (i.first <= at.first && at.first <= i.last) live += i.bytes;
    }
    most = std::max(most, live);
  }
  return most;
}

// Everything a packing must keep, by brute force over all pairs; empty when it does.
std::string violation(const std::vector<PackItem>& items, const Packing& p) {
  std::uint64_t top = 0;
  if (p.offset.size() != items.size()) return "not one offset per item";
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PackItem& a = items[i];
    if (p.offset[i] % a.alignment != 0) return "item " + std::to_string(i) + " is not aligned";
    if (a.bytes > 0) top = std::max(top, p.offset[i] + a.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const PackItem& b = items[j];
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool overlap =
          p.offset[i] < p.offset[j] + b.bytes && p.offset[j] < p.offset[i] + a.bytes;
      if (together && overlap && a.bytes > 0 && b.bytes > 0) {
        return "items " + std::to_string(j) + " and " + std::to_string(i) + " overlap";
      }
    }
  }
  if (top != p.peak) return "the peak is not the highest byte";
  if (p.lower_bound != most_alive(items)) return "the lower bound is not what is alive";
  if (p.peak < p.lower_bound) return "the peak is below the lower bound";
  return {};
}

TEST(Packing, KeepsLivingItemsApartInRandomPrograms) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int program = 0; program < 3000; ++program) {
    // Lengths beyond 512 instructions reach the packer's treatment of long-lived items.
    const std::uint32_t instructions = program % 8 == 0 ? 2000 : 1 + below(60);
    const std::uint32_t longest = 1 + below(instructions);
    std::vector<PackItem> items(below(70));
    for (PackItem& i : items) {
      i.first = below(instructions);
      i.last = std::min(instructions - 1, i.first + below(longest));
      i.bytes = below(6) == 0 ? 0 : 1 + below(1u << below(14));
      i.alignment = 1u << below(10);
    }
    const std::string wrong = violation(items, pack(items));
    ASSERT_TRUE(wrong.empty()) << wrong << " in program " << program;
  }
}

TEST(Packing, OfNothingIsEmpty) {
  const Packing p = pack({});
  EXPECT_EQ(p.peak, 0u);
  EXPECT_EQ(p.lower_bound, 0u);
  EXPECT_TRUE(p.offset.empty());
  EXPECT_EQ(live_bound({}), 0u);
}

TEST(Packing, ItemsThatTouchInTimeAreAliveTogether) {
  // The instruction that ends the one begins the other: it reads one and writes the other.
  const std::vector<PackItem> items = {{0, 3, 100, 1}, {3, 5, 100, 1}, {4, 9, 100, 1}};
  const Packing p = pack(items);
  EXPECT_EQ(p.peak, 200u);
  EXPECT_NE(p.offset[0], p.offset[1]);
  EXPECT_EQ(p.offset[0], p.offset[2]);
}

TEST(Packing, ZeroByteItemsTakeNoPlace) {
  const std::vector<PackItem> items = {{0, 9, 0, 256}, {0, 9, 512, 256}, {2, 3, 0, 4096}};
  const Packing p = pack(items);
  EXPECT_EQ(p.peak, 512u);
  EXPECT_EQ(violation(items, p), "");
}

TEST(Packing, PadsToTheAlignmentOfTheItemBehind) {
  const std::vector<PackItem> items = {{0, 1, 1000, 1}, {0, 1, 300, 512}};
  const Packing p = pack(items);
  EXPECT_EQ(p.offset[1], 1024u);
  EXPECT_EQ(p.peak, 1324u);
  EXPECT_EQ(p.lower_bound, 1300u);
}

TEST(Packing, IsDeterministic) {
  std::mt19937 random(2);
  std::vector<PackItem> items(400);
  for (PackItem& i : items) {
    i.first = static_cast<std::uint32_t>(random() % 300);
    i.last = i.first + static_cast<std::uint32_t>(random() % 90);
    i.bytes = 256 * (1 + random() % 4);  // many equal keys
  }
  EXPECT_EQ(pack(items).offset, pack(items).offset);
}

TEST(Packing, MeetsTheLowerBoundOnNestedLifetimes) {
  // Forward makes checkpoints, backward takes them in reverse, with scratch at each turn.
  std::vector<PackItem> items;
  const std::uint32_t blocks = 40, per_block = 30;
  for (std::uint32_t l = 0; l < blocks; ++l) {
    const std::uint32_t begin = l * per_block, end = (2 * blocks - l) * per_block - 1;
    items.push_back({begin, end, 65536, 256});
    for (std::uint32_t i = 0; i + 2 < per_block; i += 2) {
      items.push_back({begin + i, begin + i + 2, 65536 * (1 + i % 4), 256});
      items.push_back({end - i - 2, end - i, 65536 * (1 + i % 4), 256});
    }
  }
  const Packing p = pack(items);
  EXPECT_EQ(violation(items, p), "");
  EXPECT_EQ(p.peak, p.lower_bound);
}

// Forty blocks of 14B width: what a training step with or without recomputation leaves to pack.
std::vector<PackItem> transformer(std::uint64_t tokens, bool recompute) {
  const std::uint64_t width = tokens * 5120 * 2, hidden = tokens * 13824 * 2, text = 512 * 5120 * 2;
  const std::vector<std::uint64_t> forward_sizes = {
      width, width,        width, width,  width,  width, width, width, width,
      width, tokens * 160, width, width,  width,  width, text,  text,  width,
      width, width,        width, hidden, hidden, width, width};
  const std::vector<std::uint64_t> backward_sizes = {hidden, hidden, width, width, width, width,
                                                     width,  width,  width, width, width, width};
  std::mt19937 random(1);
  std::vector<PackItem> items;
  std::uint32_t now = 0;
  const auto temp = [&](std::uint64_t bytes, std::uint32_t more) {
    items.push_back({now, now + more, bytes, 256});
    return items.size() - 1;
  };
  const auto some = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  const auto forward = [&](std::vector<std::size_t>* kept) {
    for (const std::uint64_t bytes : forward_sizes) {
      const std::size_t x = temp(bytes, 1 + some(4));
      temp(tokens * 4, 2);  // statistics
      if (some(4) == 0) temp(32u << 20, 0);
      if (kept && some(2) == 1) kept->push_back(x);
      ++now;
    }
  };
  std::vector<std::vector<std::size_t>> saved(40);
  for (auto& s : saved) {
    if (recompute) s.push_back(temp(width, 0));
    forward(recompute ? nullptr : &s);
  }
  for (std::size_t l = saved.size(); l-- > 0;) {
    if (recompute) forward(&saved[l]);
    for (int pass = 0; pass < 4; ++pass) {
      for (const std::uint64_t bytes : backward_sizes) {
        temp(bytes, 1 + some(3));
        ++now;
      }
    }
    for (const std::size_t s : saved[l]) items[s].last = now;
  }
  return items;
}

TEST(Packing, StaysWithinTwoPercentOfTheLowerBoundOnTransformers) {
  for (const bool recompute : {false, true}) {
    for (const std::uint64_t tokens : {32760u, 4095u}) {
      const std::vector<PackItem> items = transformer(tokens, recompute);
      ASSERT_GT(items.size(), 3000u);
      const Packing p = pack(items);
      const double ratio = static_cast<double>(p.peak) / static_cast<double>(p.lower_bound);
      EXPECT_LE(ratio, 1.02) << tokens << " tokens, recompute " << recompute;
      RecordProperty("ratio", std::to_string(ratio));
    }
  }
}

}  // namespace
}  // namespace ballast
