#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace ballast::train {

struct BadStep {
  std::int64_t step = 0;
  double loss = 0, gradient_norm = 0;
  double learning_rate = 0;
  std::vector<std::string> samples;  // ids of all that were in it
};

// What happens when loss or gradient norm is NaN or infinite, before the weights are touched.
//
//   if (NanGuard::bad(loss, norm)) {
//     log::warn("{}", guard.skip({...}));   // throws when the run shall stop
//   } else {
//     guard.good();
//     update();
//   }
class NanGuard {
 public:
  // limit: so many bad steps in a row mean that skipping does not help. consecutive, skipped: where
  // a resumed run stood.
  explicit NanGuard(OnNan policy, int limit = 10, std::int64_t consecutive = 0,
                    std::int64_t skipped = 0)
      : policy_(policy), limit_(limit), consecutive_(consecutive), skipped_(skipped) {}

  static bool bad(double loss, double gradient_norm) {
    return !std::isfinite(loss) || !std::isfinite(gradient_norm);
  }

  void good() {
    consecutive_ = 0;
    updated_ = true;
  }
  // The sentence for the log and the run log. Fails (ErrorCode::input) with OnNan::stop, and at the
  // limit.
  std::string skip(const BadStep& step);

  std::int64_t consecutive() const { return consecutive_; }
  std::int64_t skipped() const { return skipped_; }  // in the whole run

 private:
  OnNan policy_;
  int limit_;
  std::int64_t consecutive_, skipped_;
  bool updated_ = false;  // since it was made
};

}  // namespace ballast::train
