#pragma once

#include <string_view>

namespace ballast::train {

// ROUGE scores of a text against the text that was wanted, as the package rouge_score gives them
// without stemming. Words are runs of the letters a-z (large ones count as small) and digits;
// everything else separates them, other scripts too. Each score is F1 = 2 p r / (p + r) of
//   rouge1, rouge2  pairs of equal words, or of equal neighbours: p of all that were written, r of
//                   all that were wanted
//   rougeL          the longest common subsequence of words
//   rougeLsum       the same line by line: of every wanted line the words that are in a longest
//                   common subsequence with any written line; no word counts more often than it
//                   was written
// and 0 where one of the texts has no words.
struct Rouge {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0, rouge_lsum = 0;

  // The only list.
  template <class Self, class Visit>
  static void each(Self& r, Visit&& visit) {
    visit("rouge1", r.rouge1);
    visit("rouge2", r.rouge2);
    visit("rougeL", r.rouge_l);
    visit("rougeLsum", r.rouge_lsum);
  }
};
Rouge rouge(std::string_view wanted, std::string_view written);

// The mean over texts.
class MeanRouge {
 public:
  void add(const Rouge& r);
  Rouge mean() const;

 private:
  Rouge sum_;
  double count_ = 0;
};

}  // namespace ballast::train
