#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/nearest_name.h"
#include "nn/optimizer.h"
#include "train/config/config.h"

namespace ballast::train {

// Words that configurations are written with, and what they mean.

template <class T>
struct EnumName {
  std::string_view name;
  T value;
};

// Any case.
bool equal_ignoring_case(std::string_view a, std::string_view b);

template <class T, std::size_t N>
std::optional<T> parse_enum(const std::array<EnumName<T>, N>& words, std::string_view text) {
  for (const EnumName<T>& w : words) {
    if (equal_ignoring_case(w.name, text)) return w.value;
  }
  return std::nullopt;
}

// "one of a, b, c", with the nearest one where `text` looks like a slip.
template <class T, std::size_t N>
std::string one_of(const std::array<EnumName<T>, N>& words, std::string_view text) {
  std::vector<std::string_view> names;
  for (const EnumName<T>& w : words) names.push_back(w.name);
  const auto near = nearest_name(text, names);
  return "one of " + joined(names) + (near ? " (" + std::string(*near) + "?)" : "");
}

inline constexpr std::array<EnumName<DType>, 6> kDTypeNames = {{
    {"float32", DType::f32},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"float8", DType::f8_e4m3},
    {"float8_e4m3fn", DType::f8_e4m3},
    {"float8_e5m2", DType::f8_e5m2},
}};
inline constexpr std::array<EnumName<OnNan>, 2> kOnNanNames = {
    {{"stop", OnNan::stop}, {"skip", OnNan::skip}}};
inline constexpr std::array<EnumName<LoraFormat>, 3> kLoraFormatNames = {
    {{"comfy", LoraFormat::comfy}, {"kohya", LoraFormat::kohya}, {"peft", LoraFormat::peft}}};
inline constexpr std::array<EnumName<Experts>, 2> kExpertsNames = {
    {{"one", Experts::one}, {"both", Experts::both}}};
inline constexpr std::array<EnumName<DeviceChoice>, 3> kDeviceNames = {
    {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}};
inline constexpr std::array<EnumName<VerifyWeights>, 3> kVerifyNames = {
    {{"sampled", VerifyWeights::sampled},
     {"all", VerifyWeights::all},
     {"off", VerifyWeights::off}}};
inline constexpr std::string_view kVerifyHelp =
    "compare weights that are read again with the first read: sampled, all or off";
inline constexpr std::array<EnumName<UpdateRounding>, 3> kRoundingNames = {
    {{"nearest", UpdateRounding::nearest},
     {"kahan", UpdateRounding::kahan},
     {"stochastic", UpdateRounding::stochastic}}};

// Why `name` is no policy: "one of auto, resident, ..."; nullopt when it is one.
std::optional<std::string> policy_fault(std::string_view name);

// The optimizer of that kind with its trainer's defaults, for parameters of that type.
OptimizerOptions optimizer_defaults(OptimizerKind kind, DType parameter);

// The type of the weights that are trained.
DType trained_dtype(const TrainConfig& c);

// Files named in a configuration: relative to the current folder, as the trainers have it; where
// that is not there, beside the configuration, with a note.
class PathFinder {
 public:
  PathFinder(std::string_view config, std::vector<std::string>* notes);
  std::string find(std::string_view key, const std::string& path) const;

 private:
  std::string folder_;
  std::vector<std::string>* notes_;
};

}  // namespace ballast::train
