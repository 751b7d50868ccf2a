#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "core/error.h"
#include "nn/optimizer.h"

namespace ballast {
namespace {

constexpr std::array<std::pair<OptimizerKind, std::string_view>, 7> kOptimizerNames = {{
    {OptimizerKind::adamw, "adamw"},
    {OptimizerKind::adamw_optimi, "adamw_optimi"},
    {OptimizerKind::stableadamw, "stableadamw"},
    {OptimizerKind::adamw8bit, "adamw8bit"},
    {OptimizerKind::adamw8bit_kahan, "adamw8bitkahan"},
    {OptimizerKind::adafactor, "adafactor"},
    {OptimizerKind::sgd, "sgd"},
}};

}  // namespace

std::string_view name_of(OptimizerKind k) {
  for (const auto& [kind, name] : kOptimizerNames) {
    if (kind == k) return name;
  }
  check(false, "optimizer {} has no name", static_cast<int>(k));
  return {};
}

bool is_optimi(OptimizerKind k) {
  return k == OptimizerKind::adamw_optimi || k == OptimizerKind::stableadamw;
}

std::optional<OptimizerKind> find_optimizer(std::string_view name) {
  std::string plain(name);
  std::transform(plain.begin(), plain.end(), plain.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (plain == "adamw8bit_kahan") plain = name_of(OptimizerKind::adamw8bit_kahan);
  for (const auto& [kind, known] : kOptimizerNames) {
    if (known == plain) return kind;
  }
  return std::nullopt;
}

}  // namespace ballast
