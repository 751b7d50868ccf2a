#include "train/run/column_steps.h"

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::train {

std::vector<double> ColumnSteps::run(
    const std::function<void(std::size_t pass)>& run_pass,
    const std::function<std::vector<double>()>& column_losses) const {
  const ColumnSums* sums = dit.column_sums();
  std::vector<std::vector<std::string>> ends;  // by set, by column
  for (const int set : sets) {
    ends.push_back(sums ? sums->column_ends(sums->how().rank, samples, set)
                        : std::vector<std::string>(1));
  }
  std::vector<std::vector<double>> losses(sets.size());
  for (std::size_t p = 0; p < passes.size(); ++p) {
    const bool begins = p == 0 || passes[p - 1].column != passes[p].column;
    if (dit.accumulates() && begins) programs.run(runner, "zero_gradients");
    run_pass(p);
    if (p + 1 < passes.size() && passes[p + 1].column == passes[p].column) continue;
    const std::vector<double> of_column = column_losses();
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const std::string& end = ends[s].at(losses[s].size());
      if (!end.empty()) programs.run(runner, end);
      losses[s].push_back(of_column.at(s));
    }
  }
  std::vector<double> all;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    if (!sums) {
      all.push_back(losses[s].at(0));
      continue;
    }
    sums->write_losses(runner, losses[s]);
    const std::string exchange = sums->exchange(samples, sets[s]);
    if (!exchange.empty()) programs.run(runner, exchange);
    all.push_back(sums->step_loss(runner, losses[s], samples));
  }
  return all;
}

std::uint32_t agree(const wan::Dit& dit, Runner& runner, std::uint32_t wish) {
  const ColumnSums* sums = dit.column_sums();
  if (!sums || sums->how().ranks == 1) return wish;
  sums->write_wish(runner, wish);
  runner.run(ColumnSums::kAgree);
  return sums->agreed(runner);
}

}  // namespace ballast::train
