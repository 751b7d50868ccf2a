#include "train/recipes/rouge.h"

#include <gtest/gtest.h>

#include <utility>

namespace ballast::train {
namespace {

// Counted by hand: 6 words wanted, 5 written, of which the, cat, sat, mat are common.
TEST(Rouge, CountsWordsNeighboursAndSubsequences) {
  const Rouge r = rouge("The cat sat on the mat.", "the mat: cat SAT  here");
  EXPECT_DOUBLE_EQ(r.rouge1, 2 * 0.8 * (4.0 / 6) / (0.8 + 4.0 / 6));  // p 4/5, r 4/6
  EXPECT_DOUBLE_EQ(r.rouge2, 2 * 0.5 * 0.4 / 0.9);   // "the mat", "cat sat" of 4 and of 5
  EXPECT_DOUBLE_EQ(r.rouge_l, 2 * 0.6 * 0.5 / 1.1);  // the cat sat: p 3/5, r 3/6
  EXPECT_DOUBLE_EQ(r.rouge_lsum, r.rouge_l) << "one line";
}

TEST(Rouge, CountsAWordNoMoreOftenThanItWasWritten) {
  const Rouge r = rouge("a a a b", "a a c");
  EXPECT_DOUBLE_EQ(r.rouge1, 2 * (2.0 / 3) * 0.5 / (2.0 / 3 + 0.5));
  EXPECT_DOUBLE_EQ(r.rouge2, 2 * 0.5 * (1.0 / 3) / (0.5 + 1.0 / 3));
}

// The example of Lin's paper: wanted w1 w2 w3 w4 w5, written w1 w2 w6 w7 w8 and w1 w3 w8 w9 w5;
// the union of both subsequences is w1 w2 w3 w5: r 4/5, p 4/10.
TEST(Rouge, JoinsTheSubsequencesOfAllWrittenLines) {
  const Rouge r = rouge("w1 w2 w3 w4 w5", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5");
  EXPECT_DOUBLE_EQ(r.rouge_lsum, 2 * 0.4 * 0.8 / 1.2);
  EXPECT_DOUBLE_EQ(r.rouge_l, 2 * 0.4 * 0.8 / 1.2) << "w1 w2, then w3 w5";
  // Lines in another order make a difference to rougeL only.
  const Rouge turned = rouge("one two\nthree four", "three four\none two");
  EXPECT_DOUBLE_EQ(turned.rouge_lsum, 1);
  EXPECT_DOUBLE_EQ(turned.rouge_l, 0.5);
}

TEST(Rouge, IsOneForTheSameTextAndZeroWithoutWords) {
  for (const char* text : {"Ballast, 3 tokens!", "a\nb"}) {
    const Rouge same = rouge(text, text);
    Rouge::each(same, [](const char* name, double v) { EXPECT_DOUBLE_EQ(v, 1) << name; });
  }
  for (const auto& [wanted, written] :
       {std::pair{"", "a"}, std::pair{"a", ""}, std::pair{"...", "..."}, std::pair{"\n\n", "é"}}) {
    const Rouge none = rouge(wanted, written);
    Rouge::each(none, [](const char* name, double v) { EXPECT_EQ(v, 0) << name; });
  }
  // What stands between letters of other scripts separates them.
  EXPECT_DOUBLE_EQ(rouge("na\xc3\xafve", "na ve").rouge1, 1);
}

TEST(Rouge, MeansAreOverTexts) {
  MeanRouge mean;
  EXPECT_EQ(mean.mean().rouge1, 0);
  mean.add({.rouge1 = 1, .rouge2 = 0.5, .rouge_l = 1, .rouge_lsum = 0});
  mean.add({.rouge1 = 0.5, .rouge2 = 0.5, .rouge_l = 0, .rouge_lsum = 0});
  EXPECT_EQ(mean.mean().rouge1, 0.75);
  EXPECT_EQ(mean.mean().rouge_l, 0.5);
}

}  // namespace
}  // namespace ballast::train
