#include "models/t5/published.h"

#include <fmt/format.h>

#include <array>

namespace ballast::t5 {
namespace {

struct Family {
  std::string_view repositories;  // what is in front of the size
  std::string_view presets;
};

constexpr std::array kFamilies = std::to_array<Family>({
    {"google/flan-t5-", "t5-v1.1-"},
    {"google/t5-v1_1-", "t5-v1.1-"},
    {"google-t5/t5-", "t5-"},
    {"t5-", "t5-"},
});

}  // namespace

std::optional<Published> find_published(std::string_view named) {
  auto id = parse_hub_id(named);
  if (!id || !id->inside.empty()) return std::nullopt;
  for (const Family& f : kFamilies) {
    const std::string_view repository = id->repository;
    if (!repository.starts_with(f.repositories)) continue;
    const auto preset =
        find_preset(fmt::format("{}{}", f.presets, repository.substr(f.repositories.size())));
    if (!preset) continue;
    // The presets of T5 v1.1 have no repositories of their own names.
    if (f.repositories == "t5-" && repository.starts_with("t5-v1.1-")) {
      id->repository = fmt::format("google/t5-v1_1-{}", repository.substr(8));
    } else if (f.repositories == "t5-") {
      id->repository = fmt::format("google-t5/{}", repository);
    }
    return Published{.id = std::move(*id), .config = *preset};
  }
  return std::nullopt;
}

}  // namespace ballast::t5
