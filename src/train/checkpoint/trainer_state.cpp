#include "train/checkpoint/trainer_state.h"

#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "io/json_writer.h"
#include "io/utf8.h"

namespace ballast::train {
namespace {

// What one file may hold: the loop keeps a handful.
constexpr std::size_t kMaxEntries = 4096;

void append(std::string& out, std::int64_t v) { out += fmt::format("{}", v); }
void append(std::string& out, std::uint64_t v) { out += fmt::format("{}", v); }
void append(std::string& out, double v) {
  // The shortest text that gives the same bits; JSON has no word for the others.
  out += std::isfinite(v) ? fmt::format("{}", v) : fmt::format("\"{}\"", v);
}
void append(std::string& out, const std::string& v) {
  if (first_invalid_utf8(v)) {
    fail(ErrorCode::input, "trainer state: \"{}\" is not UTF-8", printable(v));
  }
  append_json_string(out, v);
}
template <class T>
void append(std::string& out, const std::map<std::string, T>& map) {
  const char* comma = "";
  out += '{';
  for (const auto& [key, value] : map) {
    out += comma;
    append(out, key);
    out += ": ";
    append(out, value);
    comma = ", ";
  }
  out += '}';
}

void read(JsonReader& json, std::int64_t& v) { v = json.i64(); }
void read(JsonReader& json, std::uint64_t& v) { v = json.u64(); }
void read(JsonReader& json, std::string& v) { v = json.string(); }
void read(JsonReader& json, double& v) {
  if (json.peek() == JsonReader::Kind::number) {
    v = json.number();
    return;
  }
  const std::string_view word = json.string();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (word == "inf" || word == "-inf") {
    v = word[0] == '-' ? -kInfinity : kInfinity;
  } else if (word == "nan" || word == "-nan") {
    v = std::copysign(std::numeric_limits<double>::quiet_NaN(), word[0] == '-' ? -1.0 : 1.0);
  } else {
    json.fail_value("expected a number, \"nan\", \"inf\" or \"-inf\"");
  }
}
template <class T>
void read(JsonReader& json, std::map<std::string, T>& map) {
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    const auto [place, added] = map.try_emplace(std::string(key));
    if (!added) json.fail_here("a key twice");
    if (map.size() > kMaxEntries) json.fail_here("too many entries");
    read(json, place->second);
  }
}

}  // namespace

std::string to_json(const TrainerState& state) {
  std::string out = "{";
  TrainerState::fields(state, [&](std::string_view name, const auto& value) {
    out += out.size() == 1 ? "\n  " : ",\n  ";
    append_json_string(out, name);
    out += ": ";
    append(out, value);
  });
  return out += "\n}\n";
}

TrainerState parse_trainer_state(JsonSource source) {
  TrainerState state;
  std::set<std::string, std::less<>> seen;
  JsonReader json(std::move(source));
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (!seen.emplace(key).second) json.fail_here("a key twice");
    const std::string wanted(key);  // the view ends with the next string
    bool known = false;
    TrainerState::fields(state, [&](std::string_view name, auto& value) {
      if (name != wanted) return;
      known = true;
      read(json, value);
    });
    if (!known) json.fail_here("a field that this version does not know");
  }
  TrainerState::fields(state, [&](std::string_view name, auto&) {
    if (!seen.contains(name)) json.fail_here(fmt::format("the field {} is missing", name));
  });
  json.finish();
  if (state.step < 0 || state.epoch < 0 || state.batches < 0 || state.examples < 0) {
    json.fail_here("a negative count");
  }
  return state;
}

}  // namespace ballast::train
