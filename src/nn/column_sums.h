#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "plan/program_builder.h"
#include "plan/reduction_columns.h"
#include "plan/runner.h"

namespace ballast {

// How the samples of a step are dealt out: to columns, which decide the bits of sums over samples,
// and columns to ranks. One column is one rank, whose samples add up one after the other.
struct DataParallel {
  ReductionColumns columns;
  int ranks = 1, rank = 0;
  bool one_host = true;  // all ranks

  bool has_columns() const { return columns.columns > 1; }
  // Columns of a rank that have samples, of so many in the step.
  std::vector<std::int64_t> columns_of(int rank, std::int64_t samples) const;
  // A rank with the most samples of a step: a prediction for it holds for all.
  int busiest(std::int64_t samples) const;
};

// Sums of gradients over the columns of a step, and over ranks.
//
// Gradients hold the column in progress. When its samples are done, the program end_of_column()
// adds those sums to it that the tree joins with it, and puts it aside where another column of the
// rank follows. The program exchange() then adds up over ranks, bucket by bucket:
//   all_to_all   part r of each sum that this rank holds -> rank r
//   tree_sum     what came, in the order of the columns
//   all_gather   the sums of all parts
// so that all ranks have the sums of the whole step in their gradients, in the same bits. Losses
// are one f64 per column and add up by the same tree.
//
// All ranks record the same programs with buffers of the same sizes.
class ColumnSums {
 public:
  struct Sets {
    std::vector<std::vector<Buffer>> gradients;  // by set of trained tensors; persistent and alike
    bool together = false;  // steps have gradients of all sets; else of one of them
    std::function<std::string(std::string_view, int set)> name;  // of a program of a set
  };
  // Declares what stands aside. samples: of every kind of step.
  ColumnSums(ProgramBuilder& pb, DataParallel how, Sets sets,
             std::span<const std::int64_t> samples);

  void record(ProgramSet& set) const;

  const DataParallel& how() const { return how_; }
  // By column of a rank that has samples; "": nothing is to be done.
  std::vector<std::string> column_ends(int rank, std::int64_t samples, int set) const;
  // "" on one rank.
  std::string exchange(std::int64_t samples, int set) const;
  // Every end of a column that any rank may run.
  std::vector<std::string> all_column_ends(int set) const;

  // losses: of this rank's columns, which go out with the exchange.
  void write_losses(Runner& runner, std::span<const double> losses) const;
  // The step's, after the exchange; the same on all ranks.
  double step_loss(Runner& runner, std::span<const double> losses, std::int64_t samples) const;

  // Ranks decide together: every one says something, all see the bits of all of them.
  static constexpr const char* kAgree = "agree";  // the program
  void write_wish(Runner& runner, std::uint32_t bits) const;
  std::uint32_t agreed(Runner& runner) const;

 private:
  // What happens when a column is done: `aside` sums wait, of which `joins` add to it.
  struct End {
    std::size_t aside = 0, joins = 0;
    bool stays = false;  // it is put aside itself

    bool does_nothing() const { return joins == 0 && !stays; }
    friend auto operator<=>(const End&, const End&) = default;
  };
  // The subtrees that each rank sends.
  using Exchange = std::vector<std::vector<ColumnRange>>;

  std::vector<End> ends_of(int rank, std::int64_t samples) const;
  Exchange exchange_of(std::int64_t samples) const;
  std::string name_of(const End& end, int set) const;
  void record_end(ProgramBuilder& pb, const End& end, int set) const;
  void record_exchange(ProgramBuilder& pb, const Exchange& exchange, int set) const;
  void exchange_bucket(ProgramBuilder& pb, const Exchange& exchange,
                       std::span<const Buffer> sums) const;

  // Where sums of a set stand.
  const std::vector<std::vector<Buffer>>& aside(int set) const {
    return aside_[sets_.together ? to_size(set) : 0];
  }

  DataParallel how_;
  Sets sets_;
  // By set, or of all sets; by place; each like the gradients of a set.
  std::vector<std::vector<std::vector<Buffer>>> aside_;
  std::vector<End> ends_;            // of any rank and step
  std::vector<Exchange> exchanges_;  // of any step
  std::int64_t most_columns_ = 1;    // of a rank
  Buffer my_losses_, losses_, my_wish_, wishes_;
};

}  // namespace ballast
