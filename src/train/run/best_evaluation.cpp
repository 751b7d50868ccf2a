#include "train/run/best_evaluation.h"

#include <cmath>

namespace ballast::train {

void BestEvaluation::take(std::int64_t step, double value) {
  const double gain = rule_.greater ? value - best : best - value;
  const bool better = std::isfinite(value) && (checks == 0 || gain > rule_.min_gain);
  ++checks;
  if (better) best = value, best_step = step;
  worse = better ? 0 : worse + 1;
}

}  // namespace ballast::train
