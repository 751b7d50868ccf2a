#include "app/help_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/machine_flags.h"
#include "app/planning.h"
#include "train/config/read_config.h"
#include "train/config/seq2seq_config.h"

namespace ballast {
namespace {

// Where lines that continue this one begin.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  if (begin >= 20) return begin;  // the explanation of an option whose name has a line of its own
  const std::size_t gap = line.find("  ", begin);
  if (gap == std::string_view::npos) return begin + (begin > 0 ? 2 : 0);
  const std::size_t column = line.find_first_not_of(' ', gap);
  return column == std::string_view::npos || column > columns / 2 + 8 ? begin + 2 : column;
}

// The last space that a line may be broken at; npos: none.
std::size_t break_of(std::string_view line, std::size_t indent, std::size_t columns) {
  const std::size_t at = line.rfind(' ', columns);
  if (at != std::string_view::npos && at > indent && line.find_first_not_of(' ') < at) {
    return at;
  }
  const std::size_t later = line.find(' ', columns);
  return later;
}

std::string usage(std::string_view command) {
  std::string text = fmt::format(
      "ballast {0} CONFIG.toml             a diffusion-pipe or musubi-tuner file\n"
      "ballast {0} --dit FILE ...          musubi-tuner's flags\n"
      "ballast {0} --dataset_path DIR ...  the flow-matching trainer's flags\n",
      command);
  if (command != "cache") {
    text += fmt::format("ballast {} --train_file FILE ...   T5: flags of transformers' scripts\n",
                        command);
  }
  return text + fmt::format(
                    "\nPaste a trainer's line as it is behind `ballast {}`: launchers "
                    "(accelerate\nlaunch, deepspeed, torchrun, python) and environment "
                    "assignments are skipped.\nConfigurations to begin with are in examples/, "
                    "explanations in docs/training.md\nand docs/text-training.md.\n",
                    command);
}

std::string short_train_help() {
  return "LoRA or full fine-tune inside the memory you have.\n\n" + usage("train") +
         "\nMemory and machine\n" + machine_help({"device", "threads", "gpu", "ram", "disk"}) +
         "\nThe run\n"
         "  --output_dir FOLDER  where runs are written\n"
         "  --max_steps N        stop after so many optimizer steps\n"
         "  --seed N             of noise, timesteps, order and initial weights\n"
         "  --resume [RUN]       continue the newest run in output_dir, or that one\n"
         "\nOutput\n" +
         machine_help({"json"}) +
         "\nThe plan comes first, and the run keeps to it. What is not cached yet is encoded\n"
         "then (--require_cache fails instead). Ctrl-C finishes the step and saves;\n"
         "--resume continues. `ballast plan` with the same arguments shows the\n"
         "plan alone; --json=steps prints a line of JSON for each step and event. After\n"
         "a crash, `ballast doctor` says what happened.\n\n" +
         more_help("train");
}

}  // namespace

std::string fit_columns(std::string_view text, std::size_t columns) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t indent = hanging_indent(line, columns);
    for (std::size_t at = 0; line.size() > columns;) {
      at = break_of(line, indent, columns);
      if (at == std::string::npos) break;
      out += line.substr(0, line.find_last_not_of(' ', at) + 1) + "\n";
      const std::size_t rest = line.find_first_not_of(' ', at);
      line = rest == std::string::npos ? "" : std::string(indent, ' ') + line.substr(rest);
    }
    out += line + "\n";
  }
  return out;
}

std::string more_help(std::string_view command) {
  return fmt::format(
      "More help\n"
      "  ballast {0} --help-all             every option\n"
      "  ballast {0} --help-diffusion-pipe  for a diffusion-pipe TOML\n"
      "  ballast {0} --help-musubi          musubi-tuner's flags\n"
      "  ballast {0} --help-flow-matching   full fine-tune of TI2V-5B\n{1}",
      command,
      command == "cache"
          ? std::string()
          : fmt::format("  ballast {} --help-t5              T5 and FLAN-T5\n", command));
}

std::optional<std::string> training_help(std::string_view command,
                                         const std::vector<std::string>& arguments) {
  using train::Dialect;
  for (const std::string& a : arguments) {
    if (command == "train" && (a == "--help" || a == "-h")) return short_train_help();
    if (a == "--help-all") {
      return usage(command) + "\n" + own_flags_help() + "\n" + train::common_flags_help() + "\n" +
             train::dialect_flags_help(Dialect::diffusion_pipe) + "\n" +
             train::dialect_flags_help(Dialect::musubi) + "\n" +
             train::dialect_flags_help(Dialect::flow_matching) +
             (command == "cache" ? "" : "\n" + train::seq2seq_flags_help());
    }
    const auto page = [&](std::string_view line, std::string_view example,
                          const std::string& flags) {
      return fmt::format("ballast {} {}\n\nExample: {}\n\n{}\n", command, line, example, flags) +
             fmt::format("`ballast {} --help-all` lists the options that every run takes.\n",
                         command);
    };
    if (a == "--help-diffusion-pipe") {
      return page("CONFIG.toml [OPTIONS]",
                  "examples/i2v_lora_24gb.toml; docs/training.md explains the keys",
                  train::dialect_flags_help(Dialect::diffusion_pipe));
    }
    if (a == "--help-musubi") {
      return page("--dit FILE --dataset_config FILE [OPTIONS]", "examples/musubi_lora.sh",
                  train::dialect_flags_help(Dialect::musubi));
    }
    if (a == "--help-flow-matching") {
      return page("--dataset_path FOLDER [OPTIONS]", "examples/full_5b.sh",
                  train::dialect_flags_help(Dialect::flow_matching));
    }
    if (a == "--help-t5" && command != "cache") {
      return fmt::format(
                 "ballast {} --model_name_or_path FOLDER --train_file FILE --output_dir FOLDER\n\n"
                 "Example: examples/flan_t5; docs/text-training.md explains more\n\n",
                 command) +
             own_flags_help() + "\n" + train::seq2seq_flags_help();
    }
  }
  return std::nullopt;
}

}  // namespace ballast
