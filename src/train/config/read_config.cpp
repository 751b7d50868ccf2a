#include "train/config/read_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "io/hub_cache.h"
#include "train/config/config_dialects.h"

namespace ballast::train {
namespace {

constexpr std::string_view kMusubiNames[] = {"dit", "dataset_config", "network_module",
                                             "network_dim"};
constexpr std::string_view kFlowMatchingNames[] = {"dataset_path",   "num_epochs",
                                                   "checkpoint_dir", "use_8bit_adam",
                                                   "dataset_dir",    "vae_checkpoint"};

constexpr std::string_view kDistillerNames[] = {"teacher_path", "student_config", "data_path"};
constexpr std::string_view kDiffSynthNames[] = {"dataset_base_path", "dataset_metadata_path",
                                                "lora_base_model", "model_id_with_origin_paths"};

// Command lines of tools whose flags are not a training run's.
void refuse_other_tools(std::span<const Setting> flags) {
  if (any_named(flags, kDistillerNames)) {
    fail(ErrorCode::usage, "these are WanDistiller's flags",
         {{"ballast distill ...", "takes them; with --plan it prints the plan alone"}});
  }
  if (any_named(flags, kDiffSynthNames)) {
    fail(ErrorCode::usage, "these are DiffSynth-Studio's flags, which are not read here",
         {{"ballast train CONFIG.toml", "with a diffusion-pipe file: see examples/"},
          {"ballast train --dit FILE --dataset_config FILE ...", "musubi-tuner's flags"}});
  }
}

bool any_key(const TomlValue& table, std::span<const std::string_view> names) {
  return std::ranges::any_of(table.members, [&](const TomlMember& member) {
    return std::ranges::find(names, member.key) != names.end() || any_key(member.value, names);
  });
}

// musubi-tuner's names are known wherever they stand; diffusion-pipe has none of them.
bool is_musubi(const TomlFile& file) {
  const TomlTable root = file.root();
  return std::ranges::any_of(root.keys(), [&](std::string_view key) {
    return std::ranges::find(kMusubiNames, key) != std::end(kMusubiNames) ||
           any_key(*root.find(key), kMusubiNames);
  });
}

void refuse_dataset_file(const TomlFile& file) {
  const TomlTable root = file.root();
  if (root.has("model")) return;
  for (const std::string_view key : {"directory", "datasets", "resolutions", "general"}) {
    if (!root.has(key)) continue;
    fail(ErrorCode::input,
         fmt::format("{} line {}: {}: this describes a dataset, not a run", file.path(),
                     root.line_of(key), key),
         {{"give the main configuration", "it names this file as its dataset"}});
  }
}

// as_musubi: by its own flag; then the file may hold nothing but names that others have too.
TrainConfig read_file(const std::string& path, std::span<const Setting> flags, ConfigUse use,
                      bool as_musubi) {
  if (path.ends_with(".yaml") || path.ends_with(".yml")) {
    fail(ErrorCode::input, fmt::format("{}: YAML configurations are not read", printable(path)),
         {{"ballast train CONFIG.toml", "with a diffusion-pipe file: see examples/"}});
  }
  const TomlFile file = TomlFile::read(path);
  if (!is_musubi(file) && (!as_musubi || file.root().has("model"))) {
    refuse_dataset_file(file);
    return read_diffusion_pipe(file, flags);
  }
  std::vector<Setting> settings = flattened(file);
  settings.insert(settings.end(), flags.begin(), flags.end());
  return read_musubi(path, settings, use);
}

struct NamedConfig {
  std::string path;
  bool musubi = false;  // --config_file is its flag
};

// Takes --config and --config_file out of the flags.
NamedConfig take_config(std::vector<Setting>& flags) {
  NamedConfig named;
  std::string& path = named.path;
  std::erase_if(flags, [&](const Setting& s) {
    if (s.name != "config" && s.name != "config_file") return false;
    if (!path.empty() && path != s.text()) {
      fail(ErrorCode::usage, "{}: a second configuration", s.where);
    }
    path = s.text();
    named.musubi = s.name == "config_file";
    return true;
  });
  return named;
}

}  // namespace

bool names_a_run(std::span<const std::string> arguments) {
  return std::ranges::any_of(arguments, [](std::string_view a) {
    if (!a.starts_with("--")) return false;
    std::string name(a.substr(2, a.find('=') - 2));
    std::ranges::replace(name, '-', '_');
    return std::ranges::find(kMusubiNames, name) != std::end(kMusubiNames) ||
           std::ranges::find(kFlowMatchingNames, name) != std::end(kFlowMatchingNames);
  });
}

namespace {

// Ids of the hub become the folders of the local cache.
void resolve_paths(TrainConfig& c) {
  const auto resolve = [&](std::string& path, HubUse use = HubUse::weights) {
    ModelPath found = resolve_model_path(path, use);
    path = std::move(found.path);
    if (found.note.empty() || std::ranges::find(c.notes, found.note) != c.notes.end()) return;
    c.notes.push_back(std::move(found.note));
  };
  resolve(c.model.checkpoint);
  resolve(c.model.transformer);
  resolve(c.model.high_noise_transformer);
  resolve(c.caching.vae);
  resolve(c.caching.text_encoder);
  resolve(c.caching.tokenizer, HubUse::tokenizer);
  if (c.vae) resolve(c.vae->file);
  if (c.student) resolve(c.student->file);
}

// What is wrong with flags that every trainer's run takes.
void check_common_flags(std::span<const Setting> flags) {
  TrainConfig none;
  FlagTable table(&none.notes);
  CommonFlags common;
  common.declare(table);
  std::vector<Setting> known;
  std::ranges::copy_if(flags, std::back_inserter(known),
                       [&](const Setting& s) { return table.knows(s.name); });
  table.read(known);
  common.apply(none);
}

TrainConfig read_dialect(const std::string& path, std::span<const Setting> flags, ConfigUse use) {
  std::vector<Setting> rest(flags.begin(), flags.end());
  const NamedConfig named = take_config(rest);
  if (!named.path.empty() && !path.empty()) {
    fail(ErrorCode::usage, "two configurations, {} and {}: expected one", printable(path),
         printable(named.path));
  }
  if (!path.empty() || !named.path.empty()) {
    return read_file(path.empty() ? named.path : path, rest, use,
                     named.musubi || any_named(rest, kMusubiNames));
  }
  refuse_other_tools(rest);  // they share names with the trainers below
  if (any_named(rest, kMusubiNames)) return read_musubi("", rest, use);
  if (any_named(rest, kFlowMatchingNames)) {
    return read_flow_matching(rest);
  }
  check_common_flags(rest);
  fail(
      ErrorCode::usage, "there is no configuration",
      {{"ballast train config.toml", "a diffusion-pipe or musubi-tuner file"},
       {"ballast train --dit FILE --dataset_config FILE ...", "musubi-tuner's flags"},
       {"ballast train --dataset_path FOLDER ...", "full fine-tune of TI2V-5B on cached latents"}});
}

}  // namespace

TrainConfig read_config(const std::string& path, std::span<const Setting> flags, ConfigUse use) {
  TrainConfig c = read_dialect(path, flags, use);
  resolve_paths(c);
  return c;
}

TrainConfig read_config(std::span<const std::string> arguments, ConfigUse use) {
  std::vector<std::string> notes;
  std::vector<std::string> switches;
  const auto collect = [&](auto declare) {
    FlagTable table(&notes);
    declare(table);
    const auto more = table.switches();
    switches.insert(switches.end(), more.begin(), more.end());
  };
  CommonFlags common;
  collect([&](FlagTable& t) { common.declare(t); });
  collect([](FlagTable& t) { declare_diffusion_pipe(t, nullptr); });
  collect(describe_musubi);
  collect(describe_flow_matching);
  const CommandLine line = split_arguments(arguments, switches);
  return read_config(line.config, line.settings, use);
}

namespace {

std::string section(std::string_view title, const std::function<void(FlagTable&)>& declare) {
  std::vector<std::string> notes;
  FlagTable table(&notes);
  declare(table);
  return fmt::format("{}:\n{}", title, table.help());
}

}  // namespace

std::string common_flags_help() {
  CommonFlags common;
  return section("Training options", [&](FlagTable& t) { common.declare(t); });
}

std::string dialect_flags_help(Dialect dialect) {
  switch (dialect) {
    case Dialect::diffusion_pipe:
      return section("With a diffusion-pipe file",
                     [](FlagTable& t) { declare_diffusion_pipe(t, nullptr); });
    case Dialect::musubi:
      return section("musubi-tuner (also in a file given by --config_file)", describe_musubi);
    case Dialect::flow_matching:
      return section("The flow-matching trainer", describe_flow_matching);
  }
  return "";
}

std::vector<FlagInfo> trainer_flags() {
  std::vector<FlagInfo> all;
  std::set<std::string> seen;
  const auto collect = [&](const std::function<void(FlagTable&)>& declare) {
    std::vector<std::string> notes;
    FlagTable table(&notes);
    declare(table);
    for (FlagInfo& f : table.honoured()) {
      if (seen.insert(f.name).second) all.push_back(std::move(f));
    }
  };
  CommonFlags common;
  collect([&](FlagTable& t) { common.declare(t); });
  collect([](FlagTable& t) { declare_diffusion_pipe(t, nullptr); });
  collect(describe_musubi);
  collect(describe_flow_matching);
  collect(describe_seq2seq);
  return all;
}

}  // namespace ballast::train
