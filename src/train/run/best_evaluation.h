#pragma once

#include <cstdint>

namespace ballast::train {

// The best of a run's evaluations, and how long ago it was.
class BestEvaluation {
 public:
  struct Rule {
    bool greater = false;       // is better
    double min_gain = 0;        // one that is better by less is not better
    std::int64_t patience = 0;  // so many in a row that are not better are enough; 0: never
  };
  explicit BestEvaluation(const Rule& rule) : rule_(rule) {}

  // A value that is no number is not better.
  void take(std::int64_t step, double value);
  bool exhausted() const { return rule_.patience > 0 && worse >= rule_.patience; }

  double best = 0;
  std::int64_t best_step = -1;         // -1: none yet
  std::int64_t checks = 0, worse = 0;  // how many in all, and since the best

 private:
  Rule rule_;
};

}  // namespace ballast::train
