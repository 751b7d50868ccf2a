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
  read_fields(t, d);
  while_doing(fmt::format("reading steps and shift of [distill] in {}", t.path()),
              [&] { sigmas_of(d); });
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
  read_fields(t, s);
  if (!s.file.empty() && (s.layers > 0 || s.dim > 0 || s.ffn_dim > 0)) {
    t.fail_at("student_path", "its sizes are those of the file: leave out layers, dim and ffn_dim");
  }
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
