#include "models/wan/published.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace ballast::wan {
namespace {

constexpr std::string_view kPublisher = "Wan-AI/";
constexpr std::string_view kDiffusersEnd = "-Diffusers";

struct Repository {
  std::string_view name;
  std::string_view preset = {};   // "": not run
  std::string_view instead = {};  // what it is, where it is not run
};

// All of them also with -Diffusers behind.
constexpr std::array kRepositories = std::to_array<Repository>({
    {"Wan2.2-TI2V-5B", "wan2.2-ti2v-5b"},
    {"Wan2.2-T2V-A14B", "wan2.2-t2v-a14b"},
    {"Wan2.2-I2V-A14B", "wan2.2-i2v-a14b"},
    {"Wan2.1-T2V-1.3B", "wan2.1-t2v-1.3b"},
    {"Wan2.1-T2V-14B", "wan2.1-t2v-14b"},
    {"Wan2.1-I2V-14B-480P", {}, "Wan2.1 image-to-video with CLIP cross-attention"},
    {"Wan2.1-I2V-14B-720P", {}, "Wan2.1 image-to-video with CLIP cross-attention"},
    {"Wan2.1-FLF2V-14B-720P", {}, "Wan2.1 first-last-frame-to-video"},
    {"Wan2.1-FLF2V-14B-720P-diffusers", {}, "Wan2.1 first-last-frame-to-video"},
    {"Wan2.1-VACE-1.3B", {}, "VACE"},
    {"Wan2.1-VACE-14B", {}, "VACE"},
    {"Wan2.2-S2V-14B", {}, "Wan2.2 S2V"},
    {"Wan2.2-Animate-14B", {}, "Wan2.2 Animate"},
});

bool equal_names(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::optional<Published> find_published(std::string_view named) {
  auto id = parse_hub_id(named);
  if (!id) return std::nullopt;
  if (id->repository.find('/') == std::string::npos) {
    if (!id->revision.empty()) return std::nullopt;
    for (const Repository& r : kRepositories) {
      if (r.preset != named) continue;
      id->repository = std::string(kPublisher) + std::string(r.name);
      return Published{.id = std::move(*id), .config = *find_preset(r.preset)};
    }
    return std::nullopt;
  }
  std::string_view name = id->repository;
  if (!equal_names(name.substr(0, kPublisher.size()), kPublisher)) return std::nullopt;
  name.remove_prefix(kPublisher.size());
  for (const Repository& r : kRepositories) {
    const bool plain = equal_names(name, r.name);
    const bool diffusers =
        !plain && equal_names(name, std::string(r.name) + std::string(kDiffusersEnd));
    if (!plain && !diffusers) continue;
    if (r.preset.empty()) {
      fail(ErrorCode::input,
           fmt::format("{} is {}, which Ballast does not run", id->repository, r.instead),
           {{"Wan-AI/Wan2.2-I2V-A14B, Wan-AI/Wan2.2-T2V-A14B, Wan-AI/Wan2.2-TI2V-5B",
             "are models that it runs"}});
    }
    id->repository = fmt::format("{}{}{}", kPublisher, r.name, diffusers ? kDiffusersEnd : "");
    return Published{
        .id = std::move(*id), .config = *find_preset(r.preset), .diffusers = diffusers};
  }
  return std::nullopt;
}

}  // namespace ballast::wan
