#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/step_programs.h"

namespace ballast::train {

// A step of a transformer on this rank: its passes, column by column.
struct ColumnSteps {
  const wan::Dit& dit;
  StepPrograms& programs;
  Runner& runner;
  const std::vector<wan::StepPass>& passes;
  std::int64_t samples = 0;  // of the step, on all ranks
  std::vector<int> sets;     // of trained tensors, whose gradients the passes add to

  // Gradients begin at zero with each column, and end as the sums of the whole step. run_pass: by
  // its number. column_losses: of the column whose passes have run, by `sets`. Returns those of the
  // step.
  std::vector<double> run(const std::function<void(std::size_t pass)>& run_pass,
                          const std::function<std::vector<double>()>& column_losses) const;
};

// The bits that any rank wishes.
std::uint32_t agree(const wan::Dit& dit, Runner& runner, std::uint32_t wish);

}  // namespace ballast::train
