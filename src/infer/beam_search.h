#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ballast::infer {

struct BeamOptions {
  int beams = 1;
  double length_penalty = 1;    // a finished sequence counts as its score / length ^ this
  bool early_stopping = false;  // end as soon as as many are finished as there are beams
  std::int32_t eos = 1;
};

// Beam search as transformers does it, for one sample: beams sequences go on together; with one
// beam it is the greedy choice. Sequences hold generated tokens, without the start token.
class BeamSearch {
 public:
  explicit BeamSearch(const BeamOptions& options);

  // Takes the logits [beams, vocabulary] of the token that comes next and makes the choice. Fails
  // with ErrorCode::input where a row of them has NaN or infinity, -infinity apart.
  // Afterwards sequence i continues sequence parents()[i] with tokens()[i].
  void advance(std::span<const float> logits, std::int64_t vocabulary);
  bool done() const { return done_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const std::int32_t> parents() const { return parents_; }

  // The best one, of those that are not finished, too, when there is no time for more.
  std::vector<std::int32_t> best() const;

 private:
  struct Sequence {
    std::vector<std::int32_t> tokens;
    float score = 0;  // of a running one the sum of logarithms, of a finished one with penalty
  };
  float penalised(float score, std::size_t length) const;
  void finish(Sequence s);

  BeamOptions options_;
  std::vector<Sequence> running_, finished_;  // finished: best first
  std::vector<std::int32_t> tokens_, parents_;
  bool done_ = false;
};

}  // namespace ballast::infer
