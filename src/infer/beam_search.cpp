#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::infer {
namespace {

// One continuation of one sequence; the order among equal scores is that of the flat index.
struct Candidate {
  float score;
  std::int64_t index;  // sequence * vocabulary + token

  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.index < b.index;
  }
};

// log sum e^x of a row, in f64.
double log_sum(std::span<const float> x) {
  const double most = *std::ranges::max_element(x);
  double sum = 0;
  for (const float v : x) sum += std::exp(static_cast<double>(v) - most);
  return most + std::log(sum);
}

constexpr float kNever = -1e9f;

}  // namespace

BeamSearch::BeamSearch(const BeamOptions& options) : options_(options) {
  check(options.beams > 0, "{} beams", options.beams);
  running_.resize(to_size(options.beams));
  // At first all are the same: only one may go on.
  for (std::size_t i = 1; i < running_.size(); ++i) running_[i].score = kNever;
}

float BeamSearch::penalised(float score, std::size_t length) const {
  return score / static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
}

void BeamSearch::finish(Sequence s) {
  const auto place = std::ranges::upper_bound(finished_, s.score, std::greater(), &Sequence::score);
  finished_.insert(place, std::move(s));
  if (finished_.size() > running_.size()) finished_.pop_back();
}

void BeamSearch::advance(std::span<const float> logits, std::int64_t vocabulary) {
  const std::size_t beams = running_.size();
  const auto width = to_size(vocabulary);
  check(logits.size() == beams * width, "{} logits for {} sequences of {} tokens", logits.size(),
        beams, vocabulary);
  // A sequence that ends makes room for another: twice as many candidates always leave enough.
  const std::size_t wanted = std::min(2 * beams, logits.size());
  std::vector<Candidate> best;
  for (std::size_t b = 0; b < beams; ++b) {
    const std::span row = logits.subspan(b * width, width);
    const double all = log_sum(row);  // a number, but for rows with NaN or infinity
    if (!std::isfinite(all)) {
      fail(
          ErrorCode::input,
          fmt::format("the model's scores of token {} hold NaN or infinity: no token can be chosen",
                      running_[b].tokens.size() + 1),
          {{"ballast inspect of the model and adapter files that were used",
            "a damaged file gives such numbers"}});
    }
    for (std::size_t t = 0; t < width; ++t) {
      const Candidate c = {
          running_[b].score + static_cast<float>(static_cast<double>(row[t]) - all),
          static_cast<std::int64_t>(b * width + t)};
      if (best.size() == wanted && !(c < best.back())) continue;
      best.insert(std::upper_bound(best.begin(), best.end(), c), c);
      if (best.size() > wanted) best.pop_back();
    }
  }
  std::vector<Sequence> next;
  tokens_.clear();
  parents_.clear();
  for (std::size_t rank = 0; rank < best.size(); ++rank) {
    const auto parent = to_size(best[rank].index / vocabulary);
    const auto token = static_cast<std::int32_t>(best[rank].index % vocabulary);
    if (token == options_.eos ? rank >= beams : next.size() == beams) continue;
    Sequence s = {running_[parent].tokens, best[rank].score};
    s.tokens.push_back(token);
    if (token == options_.eos) {
      s.score = penalised(s.score, s.tokens.size());
      finish(std::move(s));
      continue;
    }
    tokens_.push_back(token);
    parents_.push_back(static_cast<std::int32_t>(parent));
    next.push_back(std::move(s));
  }
  // A vocabulary of the end alone: nothing goes on.
  if (next.size() < beams) {
    done_ = true;
    return;
  }
  running_ = std::move(next);
  if (finished_.size() < beams) return;
  const float reachable = penalised(running_.front().score, running_.front().tokens.size());
  // The greedy choice of the end is the end.
  done_ = options_.early_stopping || beams == 1 || finished_.back().score >= reachable;
}

std::vector<std::int32_t> BeamSearch::best() const {
  const Sequence* best = finished_.empty() ? nullptr : &finished_.front();
  if (done_ && best) return best->tokens;
  float score = best ? best->score : 0;
  for (const Sequence& s : running_) {
    if (s.tokens.empty()) continue;
    const float own = penalised(s.score, s.tokens.size());
    if (best && own <= score) continue;
    best = &s;
    score = own;
  }
  return best ? best->tokens : std::vector<std::int32_t>();
}

}  // namespace ballast::infer
