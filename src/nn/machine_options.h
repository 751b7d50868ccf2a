#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "core/parse_enum.h"
#include "memory/budget.h"
#include "nn/weight_format.h"
#include "plan/program.h"

namespace ballast {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

inline constexpr std::array<EnumName<DeviceChoice>, 3> kDeviceNames = {
    {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}};
inline constexpr std::array<EnumName<VerifyWeights>, 3> kVerifyNames = {
    {{"sampled", VerifyWeights::sampled},
     {"all", VerifyWeights::all},
     {"off", VerifyWeights::off}}};

// A member that a flag switches off.
template <class B>
struct Negated {
  B& of;
};
template <class B>
Negated(B&) -> Negated<B>;
// A text that is "auto" or a policy's name.
template <class S>
struct PolicyName {
  S& name;
};
template <class S>
PolicyName(S&) -> PolicyName<S>;

// What a run may use of a machine and how it computes there. `fields` is the only list: commands,
// trainers' flags, configuration files and the flag reference take their subset of it. Names have
// underscores; commands show dashes.
struct MachineOptions {
  std::optional<Bytes> gpu = {}, ram = {}, disk = {};  // none: from the machine
  bool ignore_limits = false;                          // of the system: what is declared counts
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = true;  // GPU: same input, same bits; false trades that for speed
  int threads = 0;            // of the CPU backend; 0: all that the process may use
  std::string policy = "auto";
  WeightFormat weights = WeightFormat::stored;
  VerifyWeights verify_weights = VerifyWeights::sampled;
  bool json = false;

  DeclaredBudget budget() const { return {.gpu = gpu, .ram = ram, .disk = disk}; }

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("device", o.device, "auto (a GPU where there is one), cpu or cuda");
    visit("non_deterministic", Negated{o.deterministic}, "faster; not bit-reproducible");
    visit("verify_weights", o.verify_weights,
          "compare weights that are read again with the first read: sampled, all or off");
    visit("threads", o.threads, "compute threads of the CPU (0: all)");
    visit("gpu", o.gpu, "GPU memory Ballast may use, for example 24GB");
    visit("ram", o.ram, "RAM, pinned memory included");
    visit("disk", o.disk, "space for streamed weights and optimizer state");
    visit("ignore_limits", o.ignore_limits,
          "plan beyond what the system allows (control groups, ulimit, free memory and disk "
          "space), with a warning");
    visit("policy", PolicyName{o.policy}, "auto, or a policy's name");
    visit("weights", o.weights, weights_help());
    visit("json", o.json, "print JSON, sizes in bytes");
  }

  static std::string weights_help();  // with the names of all formats
};

// Sets a field from what a user wrote. What is wrong with the text comes back, to stand behind the
// flag or key: "expected a size such as 24GB, found "lots"".
std::optional<std::string> set_option(std::optional<Bytes>& to, std::string_view text);
std::optional<std::string> set_option(DeviceChoice& to, std::string_view text);
std::optional<std::string> set_option(VerifyWeights& to, std::string_view text);
std::optional<std::string> set_option(WeightFormat& to, std::string_view text);
std::optional<std::string> set_option(PolicyName<std::string> to, std::string_view text);

// The same as a function that outlives the visit of the field.
template <class T>
auto setter_of(T& field) {
  return [&field](std::string_view text) { return set_option(field, text); };
}
inline auto setter_of(PolicyName<std::string>& field) {
  return [field](std::string_view text) { return set_option(field, text); };
}

// A field as a user would write it, to the byte; "": none is set.
std::string option_text(const std::optional<Bytes>& size);
std::string option_text(DeviceChoice device);
std::string option_text(VerifyWeights verify);
std::string option_text(WeightFormat format);
std::string option_text(PolicyName<std::string> policy);

}  // namespace ballast
