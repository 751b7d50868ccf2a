#include "plan/display_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kPhaseNames = {
    {{"load", "load"},
     {"init_state", "optimizer set-up"},
     {"after_restore", "resume"},
     {"distill", "distillation"},
     {"teacher", "teacher"},
     {"step", "step"},
     {"student", "student"},
     {"zero_gradients", "step"},
     {"grad_norm", "gradient norm"},
     {"update", "update"},
     {"value_norm", "weight check"},
     {"eval", "evaluation"},
     {"predict", "sampling"},
     {"preview", "decoding"},
     {"measure", "measuring"},
     {"read", "reading prompts"},
     {"next", "writing text"},
     {"reorder", "beam search"}}};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return c >= '0' && c <= '9'; });
}

// What an instruction does, where its name is short for it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kWorkNames = {
    {{"linear", "matrix product"},
     {"linear_dw", "weight gradients"},
     {"linear_dx", "input gradients"}}};

std::string with_spaces(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

}  // namespace

std::string_view memory_name(Tier t, bool shared_ram) {
  switch (t) {
    case Tier::device:
      return shared_ram ? "RAM (compute share, --gpu)" : "GPU memory";
    case Tier::host:
      return "RAM";
    case Tier::disk:
      break;
  }
  return "disk";
}

std::string_view display_name(Role r) {
  constexpr std::array<std::string_view, kRoles> kNames = {
      "weights",     "streamed weights", "adapters",
      "gradients",   "optimizer state",  "saved activations",
      "activations", "workspace",        "staging ring",
      "inputs",      "outputs"};
  return kNames[to_size(r)];
}

std::string_view phase_name(std::string_view program) {
  const std::string_view first = program.substr(0, program.find('.'));
  for (const auto& [name, phase] : kPhaseNames) {
    if (name == first) return phase;
  }
  return first;
}

std::string instruction_text(std::string_view instruction) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = instruction; !rest.empty();) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (parts.empty()) return "";
  const std::string_view work = parts.back();
  parts.pop_back();
  bool backward = false;
  std::string where;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "backward") {
      backward = true;
    } else if (i + 1 < parts.size() && is_number(parts[i + 1])) {
      where = fmt::format("{}block {}", parts[i] == "blocks" ? "" : with_spaces(parts[i]) + " ",
                          parts[i + 1]);
      ++i;
    } else if (where.empty() && i + 1 == parts.size()) {
      where = with_spaces(parts[i]);
    }
  }
  std::string text = with_spaces(work);
  for (const auto& [name, said] : kWorkNames) {
    if (work == name) text = said;
  }
  const bool said =
      work.find("backward") != work.npos || work.ends_with("_dw") || work.ends_with("_dx");
  if (backward && !said) text += " (backward)";
  return where.empty() ? text : text + " of " + where;
}

std::string moment_text(std::string_view program, std::string_view instruction) {
  std::string text = fmt::format("in the {}", phase_name(program));
  if (!instruction.empty()) text += ": " + instruction_text(instruction);
  return text;
}

}  // namespace ballast
