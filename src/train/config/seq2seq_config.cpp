#include "train/config/seq2seq_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/path_kind.h"
#include "core/to_size.h"
#include "io/toml_table.h"
#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"

namespace ballast::train {
namespace {

// Flags that no other trainer's command line has.
constexpr std::string_view kOwnNames[] = {
    "pretrained_model",     "model_output",     "model_name_or_path",
    "train_file",           "validation_file",  "max_source_length",
    "max_target_length",    "text_column",      "summary_column",
    "source_prefix",        "num_train_epochs", "per_device_train_batch_size",
    "predict_with_generate"};
constexpr std::string_view kNoteNames[] = {"pretrained_model", "model_output"};

// Keys of a file as flags. [model] type says which trainer it is for; tables give some keys a
// meaning of their own.
std::vector<Setting> settings_of(const TomlFile& file) {
  std::vector<Setting> all = flattened(file);
  const TomlTable root = file.root();
  const auto lines_of = [&](std::string_view table, std::string_view key) {
    const auto t = root.table(table);
    return t && t->has(key) ? t->line_of(key) : -1;
  };
  const auto rename = [&](int line, std::string_view from, std::string_view to) {
    for (Setting& s : all) {
      const bool here = s.where.find(fmt::format(" line {}: ", line)) != std::string::npos;
      if (line > 0 && here && s.name == from) s.name = to;
    }
  };
  rename(lines_of("model", "path"), "path", "model_name_or_path");
  rename(lines_of("optimizer", "type"), "type", "optim");
  rename(lines_of("optimizer", "lr"), "lr", "learning_rate");
  rename(lines_of("adapter", "type"), "type", "adapter_type");
  rename(lines_of("adapter", "rank"), "rank", "lora_rank");
  rename(lines_of("adapter", "alpha"), "alpha", "lora_alpha");
  rename(lines_of("adapter", "dropout"), "dropout", "lora_dropout");
  rename(lines_of("adapter", "targets"), "targets", "lora_targets");
  rename(lines_of("adapter", "target_modules"), "target_modules", "lora_targets");
  std::erase_if(all, [](const Setting& s) { return s.name == "type"; });
  return all;
}

// Takes --config out of the flags, or the argument that is no flag.
std::string take_config(CommandLine& line) {
  std::string path = line.config;
  std::erase_if(line.settings, [&](const Setting& s) {
    if (s.name != "config" && s.name != "config_file") return false;
    path = s.text();
    return true;
  });
  return path;
}

bool names_seq2seq(const TomlFile& file) {
  const auto model = file.root().table("model");
  if (!model || !model->has("type")) return false;
  const TomlValue* type = model->find("type");
  if (type->kind != TomlValue::Kind::string) return false;
  return equal_ignoring_case(type->string, "t5") || equal_ignoring_case(type->string, "flan-t5") ||
         equal_ignoring_case(type->string, "seq2seq");
}

CommandLine split(std::span<const std::string> arguments) {
  std::vector<std::string> notes;
  FlagTable table(&notes);
  describe_seq2seq(table);
  return split_arguments(arguments, table.switches());
}

}  // namespace

bool is_seq2seq(std::span<const std::string> arguments) {
  CommandLine line = split(arguments);
  const std::string config = take_config(line);
  if (!config.empty() && is_file(config) &&
      (config.ends_with(".toml") || config.ends_with(".json"))) {
    return names_seq2seq(TomlFile::read(config));
  }
  return config.empty() && any_named(line.settings, kOwnNames);
}

Seq2SeqConfig read_seq2seq_config(std::span<const std::string> arguments) {
  CommandLine line = split(arguments);
  const std::string config = take_config(line);
  std::vector<Setting> settings;
  if (!config.empty()) settings = settings_of(TomlFile::read(config));
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  return read_seq2seq(
      any_named(settings, kNoteNames) ? Seq2SeqDialect::fine_tune : Seq2SeqDialect::transformers,
      config, settings);
}

std::string seq2seq_flags_help() {
  std::vector<std::string> notes;
  FlagTable table(&notes);
  describe_seq2seq(table);
  return "A T5 run (also in a file with [model] type = 't5'):\n" + table.help();
}

std::string_view name_of(EvalMetric m) {
  constexpr std::string_view kNames[] = {"loss", "rouge1", "rouge2", "rougeL", "rougeLsum"};
  return kNames[to_size(m)];
}

double usual_rate(std::string_view model, std::int64_t width) {
  if (model.find("xxl") != std::string_view::npos || width >= 4096) return 1e-4;
  return model.find("xl") != std::string_view::npos || width >= 2048 ? 3e-4 : 5e-4;
}

}  // namespace ballast::train
