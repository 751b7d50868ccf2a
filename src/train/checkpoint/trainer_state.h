#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "io/json_reader.h"

namespace ballast::train {

// Where a run stands, apart from its tensors. Random numbers depend on seed and step alone
// (core/random.h), so these two are all of their state.
struct TrainerState {
  std::int64_t step = 0;      // optimizer steps made
  std::int64_t epoch = 1;     // the one that the next step belongs to, from 1
  std::int64_t batches = 0;   // of that epoch, used
  std::int64_t examples = 0;  // seen in the whole run
  std::int64_t world_size = 1;
  std::uint64_t seed = 0;
  double wall_seconds = 0;  // spent training, over all parts of the run
  std::string config_hash, plan_hash, model_hash;

  // What else the loop wants back: step counts of each expert, sums behind the epoch's mean loss,
  // the schedule and its rate. Numbers come back to the bit, NaN and infinities too.
  std::map<std::string, std::int64_t> counts;
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;

  std::int64_t count(const std::string& key, std::int64_t otherwise = 0) const {
    const auto found = counts.find(key);
    return found == counts.end() ? otherwise : found->second;
  }
  double number(const std::string& key, double otherwise) const {
    const auto found = numbers.find(key);
    return found == numbers.end() ? otherwise : found->second;
  }

  // The only list of the plain fields.
  template <class Self, class Visit>
  static void fields(Self& s, Visit&& visit) {
    visit("step", s.step);
    visit("epoch", s.epoch);
    visit("batches", s.batches);
    visit("examples", s.examples);
    visit("world_size", s.world_size);
    visit("seed", s.seed);
    visit("wall_seconds", s.wall_seconds);
    visit("config_hash", s.config_hash);
    visit("plan_hash", s.plan_hash);
    visit("model_hash", s.model_hash);
    visit("counts", s.counts);
    visit("numbers", s.numbers);
    visit("texts", s.texts);
  }

  friend bool operator==(const TrainerState&, const TrainerState&) = default;
};

std::string to_json(const TrainerState& state);
// All fields must be there, once; others are an error too, since they would be lost at the next
// save.
TrainerState parse_trainer_state(JsonSource source);

}  // namespace ballast::train
