#include <fmt/format.h>

#include "core/error.h"
#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/toml_checks.h"

namespace ballast::train {
namespace {

enum class DistillMethod : std::uint8_t { dmd2, mse };

constexpr std::array<EnumName<DistillMethod>, 2> kMethods = {
    {{"dmd2", DistillMethod::dmd2}, {"mse", DistillMethod::mse}}};
constexpr std::array<EnumName<Dmd2Options::Rollout>, 2> kRollouts = {
    {{"simulate", Dmd2Options::Rollout::simulated}, {"data_latent", Dmd2Options::Rollout::data}}};
constexpr std::array<EnumName<Dmd2Options::Renoise>, 2> kRenoises = {
    {{"fresh", Dmd2Options::Renoise::fresh}, {"predicted", Dmd2Options::Renoise::predicted}}};

void read_dmd2(const TomlTable& t, TrainConfig& c) {
  Dmd2Options& d = c.dmd2.emplace();
  if (c.method != Method::lora) {
    t.fail_at("method", "student and critic are adapters of the model",
              {{"a section [adapter]", "type = 'lora' and a rank, for both of them"}});
  }
  if (c.adapter.dropout > 0) {
    t.fail_at("method", "[adapter] dropout: what the student learns on it also samples");
  }
  if (t.has("steps")) d.steps = t.numbers("steps");
  d.shift = number_from(t, "shift", 1e-6, 1e6).value_or(d.shift);
  while_doing(fmt::format("reading steps and shift of [distill] in {}", t.path()),
              [&] { sigmas_of(d); });
  d.guidance = number_from(t, "guidance", 0, 1000).value_or(d.guidance);
  d.every = integer_from(t, "student_every", 1).value_or(d.every);
  d.critic_rate = number_from(t, "critic_lr_ratio", 0, kMaxNumber).value_or(d.critic_rate);
  d.rollout = word_from(t, "rollout", kRollouts).value_or(d.rollout);
  d.renoise = word_from(t, "renoise", kRenoises).value_or(d.renoise);
  d.min_t = number_from(t, "min_t", 0, 1).value_or(d.min_t);
  d.max_t = number_from(t, "max_t", 0, 1).value_or(d.max_t);
  d.regression_steps = integer_from(t, "regression_steps", 0).value_or(d.regression_steps);
  d.teacher_steps = integer_from(t, "teacher_steps", 1).value_or(d.teacher_steps);
  if (d.min_t > d.max_t) {
    t.fail_at(t.has("max_t") ? "max_t" : "min_t",
              fmt::format("no time lies in [{}, {}]", d.min_t, d.max_t));
  }
}

void read_mse(const TomlTable& t, const PathFinder& find_path, TrainConfig& c) {
  StudentConfig& s = c.student.emplace();
  if (c.method != Method::full) {
    t.fail_at("method", "the student is a model of its own and trained whole",
              {{"remove the section [adapter]", "all of its weights are trained"},
               {"method = 'dmd2'", "trains adapters of the model itself"}});
  }
  s.file = find_path.find("student_path", t.string("student_path", ""));
  s.layers = integer_from(t, "layers", 1).value_or(0);
  s.dim = integer_from(t, "dim", 1).value_or(0);
  s.ffn_dim = integer_from(t, "ffn_dim", 1).value_or(0);
  if (!s.file.empty() && (s.layers > 0 || s.dim > 0 || s.ffn_dim > 0)) {
    t.fail_at("student_path", "its sizes are those of the file: leave out layers, dim and ffn_dim");
  }
  s.guidance = number_from(t, "guidance", 0, 1000).value_or(s.guidance);
}

}  // namespace

void read_distill(const TomlTable& t, const PathFinder& find_path, TrainConfig& c) {
  (void)t.require_string("method");
  switch (*word_from(t, "method", kMethods)) {
    case DistillMethod::dmd2:
      read_dmd2(t, c);
      break;
    case DistillMethod::mse:
      read_mse(t, find_path, c);
      break;
  }
  t.finish();
}

}  // namespace ballast::train
