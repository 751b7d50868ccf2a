// Command lines as people paste them, an argument per line. The first byte chooses whose flags
// they are: 'M' musubi-tuner, 'F' the flow-matching trainer, 'D' diffusion-pipe, 'T' and 'N'
// transformers' and the fine-tuning job's, 'W' WanDistiller's. Launchers in front are removed
// first.

#include <string>
#include <vector>

#include "app/launcher.h"
#include "fuzz.h"
#include "train/config/config_dialects.h"
#include "train/config/distill_config.h"

namespace ballast::fuzz {
namespace {

using train::FlagTable;

template <class Declare>
std::vector<std::string> switches_of(Declare&& declare) {
  std::vector<std::string> notes;
  FlagTable table(&notes);
  declare(table);
  return table.switches();
}

void read_musubi(std::span<const std::string> arguments) {
  static const auto switches = switches_of(train::describe_musubi);
  const auto line = train::split_arguments(arguments, switches);
  check_notes(train::read_musubi("", line.settings, train::ConfigUse::train).notes);
}

void read_flow_matching(std::span<const std::string> arguments) {
  static const auto switches = switches_of(train::describe_flow_matching);
  const auto line = train::split_arguments(arguments, switches);
  check_notes(train::read_flow_matching(line.settings).notes);
}

void read_diffusion_pipe(std::span<const std::string> arguments) {
  static const auto switches =
      switches_of([](FlagTable& t) { train::declare_diffusion_pipe(t, nullptr); });
  const auto line = train::split_arguments(arguments, switches);
  const TomlFile file = TomlFile::parse(
      "output_dir = 'o'\ndataset = 'd.toml'\nepochs = 1\n[model]\ntype = 'wan'\n"
      "ckpt_path = 'm'\ndtype = 'bfloat16'\n[optimizer]\ntype = 'adamw'\nlr = 1e-4\n",
      "fuzz.toml");
  check_notes(train::read_diffusion_pipe(file, line.settings).notes);
}

void read_seq2seq(std::span<const std::string> arguments, train::Seq2SeqDialect dialect) {
  static const auto switches = switches_of(train::describe_seq2seq);
  const auto line = train::split_arguments(arguments, switches);
  check_notes(train::read_seq2seq(dialect, "", line.settings).notes);
}

void read(std::uint8_t whose, std::span<const std::string> arguments) {
  switch (whose) {
    case 'M':
      return read_musubi(arguments);
    case 'F':
      return read_flow_matching(arguments);
    case 'D':
      return read_diffusion_pipe(arguments);
    case 'T':
      return read_seq2seq(arguments, train::Seq2SeqDialect::transformers);
    case 'N':
      return read_seq2seq(arguments, train::Seq2SeqDialect::fine_tune);
    case 'W':
      check_notes(train::read_distill_config({arguments.begin(), arguments.end()}).notes);
      break;
    default:
      break;
  }
}

}  // namespace

void one_input(Input input) {
  const std::uint8_t whose = input.byte();
  std::vector<std::string> arguments;
  while (input.size() > 0) arguments.emplace_back(input.line());
  accepts(
      [&] {
        const PastedLine line = strip_launcher(whose == 'W' ? "distill" : "train", arguments);
        check_notes(line.notes);
        read(whose, line.arguments);
      },
      {ErrorCode::usage, ErrorCode::input, ErrorCode::io});
}

}  // namespace ballast::fuzz
