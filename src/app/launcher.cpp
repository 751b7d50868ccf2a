#include "app/launcher.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "app/command.h"
#include "core/error.h"
#include "dist/host_memory.h"

namespace ballast {
namespace {

constexpr std::string_view kOneGpu =
    "several GPUs are not supported yet, and a step has the batch of one GPU";

// Options of launchers that take a value. They are needed where no script marks the end of them.
constexpr std::string_view kLauncherValues[] = {"num_cpu_threads_per_process",
                                                "num_processes",
                                                "num_machines",
                                                "machine_rank",
                                                "main_process_ip",
                                                "main_process_port",
                                                "gpu_ids",
                                                "dynamo_backend",
                                                "num_gpus",
                                                "num_nodes",
                                                "master_addr",
                                                "master_port",
                                                "hostfile",
                                                "include",
                                                "exclude",
                                                "nproc_per_node",
                                                "nnodes",
                                                "node_rank",
                                                "rdzv_backend",
                                                "rdzv_endpoint",
                                                "rdzv_id",
                                                "max_restarts",
                                                "deepspeed_config"};
constexpr std::string_view kLauncherSwitches[] = {"standalone", "multi_gpu",     "use_env",
                                                  "no_python",  "use_deepspeed", "use_fsdp"};
// Those of them that count GPUs, processes or machines.
constexpr std::string_view kCounts[] = {"num_gpus", "nproc_per_node", "num_processes",
                                        "nnodes",   "num_nodes",      "num_machines"};

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

std::string_view base_name(std::string_view word) { return word.substr(word.rfind('/') + 1); }

bool is_script(std::string_view word) { return word.size() > 3 && word.ends_with(".py"); }

// python, python3, python3.11
bool is_python(std::string_view name) {
  if (!name.starts_with("python")) return false;
  return std::ranges::all_of(name.substr(6), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.';
  });
}

// The name of NAME=value; "": the word is something else. Capitals only: epoch=3.safetensors is a
// file.
std::string_view assigned_name(std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == 0 || equals == std::string_view::npos) return "";
  const std::string_view name = word.substr(0, equals);
  const bool is_name = std::ranges::all_of(
      name, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
  std::error_code error;
  const bool file = is_name && std::filesystem::exists(word, error);
  return is_name && !file && (name[0] < '0' || name[0] > '9') ? name : "";
}

// "2", or the 2 of "2:4"; nullopt for "auto".
std::optional<std::int64_t> count_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> count_in_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : count_of(text);
}

bool is_command(std::string_view name) {
  return std::ranges::any_of(commands(), [&](const CommandInfo& c) { return c.name == name; });
}

// Words as a POSIX shell makes them of a line: quotes, backslashes, continued lines.
std::vector<std::string> shell_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      ++i;
      if (line[i] == '\n') continue;  // the line goes on
      if (quote == '"' && line[i] != '"' && line[i] != '\\') word += '\\';
      word += line[i];
      inside = true;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (inside) words.push_back(std::exchange(word, ""));
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (inside) words.push_back(word);
  return words;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
}

class LaunchLine {
 public:
  LaunchLine(std::string_view command, std::vector<std::string> words)
      : command_(command), words_(std::move(words)) {
    split_quoted_line();
  }

  PastedLine strip() {
    while (take_one()) {
    }
    PastedLine line;
    // musubi-tuner takes the precision of the launcher where its own flag is not given.
    if (!precision_.empty() && script_.ends_with("train_network.py")) {
      line.arguments = {"--mixed_precision", precision_};
    }
    for (; at_ < words_.size(); ++at_) {
      std::string word = words_[at_];
      if (pasted_) {
        if (word == "\\" || word == "^" || word == "`") continue;  // ends of lines
        // "\" before a space, where the end of a line was lost.
        const std::size_t begin = word.find_first_not_of(" \n\r\t");
        if (begin == std::string::npos && !word.empty()) continue;
        if (begin != std::string::npos && word.substr(begin).starts_with("--")) {
          word.erase(0, begin);
        }
      }
      line.arguments.push_back(std::move(word));
    }
    put_notes(line.notes);
    return line;
  }

 private:
  std::string_view word(std::size_t ahead = 0) const {
    return at_ + ahead < words_.size() ? std::string_view(words_[at_ + ahead]) : "";
  }

  // The whole line as one argument: ballast train "accelerate launch ...".
  void split_quoted_line() {
    if (words_.size() != 1 || words_[0].find_first_of(" \n\t") == std::string::npos) return;
    std::vector<std::string> words = shell_words(words_[0]);
    const bool flags = std::ranges::any_of(
        words, [](const std::string& w) { return w.starts_with("--") || is_script(w); });
    if (flags && words.size() > 1 && begins_pasted_line(words[0], words[1])) {
      words_ = std::move(words);
    }
  }

  // One thing in front of the flags; false: there is none left.
  bool take_one() {
    const std::string_view name = base_name(word());
    if (const std::string_view assigned = assigned_name(word()); !assigned.empty()) {
      const auto processes =
          assigned == "WORLD_SIZE" ? count_of(word().substr(assigned.size() + 1)) : std::nullopt;
      if (processes.value_or(1) > 1) add_once(several_, fmt::format("WORLD_SIZE={}", *processes));
      add_once(assignments_, std::string(assigned));
      ++at_;
    } else if (is_script(word())) {
      std::error_code error;
      if (!pasted_ && words_.size() == 1 && std::filesystem::exists(words_[0], error)) return false;
      script_ = word();
      ++at_;
      pasted_ = true;
      return false;
    } else if (!begins_pasted_line(word(), word(1))) {
      return false;
    } else if (is_python(name)) {
      ++at_;
      take_python_options();
    } else if (name == "uv") {
      at_ += 2;
      take_options_of_uv();
    } else if (name == "accelerate") {
      at_ += 2;
      take_launcher_options();
    } else if (name == "torchrun" || name == "deepspeed") {
      ++at_;
      take_launcher_options();
    } else if (name == "ballast") {
      take_ballast();
    } else {
      ++at_;  // env, nohup, exec, sudo
    }
    pasted_ = true;
    return true;
  }

  void take_python_options() {
    while (word().size() > 1 && word()[0] == '-' && word()[1] != '-') {
      if (word() == "-m") {
        const std::string module(word(1));
        at_ = std::min(at_ + 2, words_.size());
        if (module.starts_with("torch.distributed") || module.starts_with("accelerate") ||
            module.starts_with("deepspeed")) {
          take_launcher_options();
        } else {
          script_ = module.substr(module.rfind('.') + 1) + ".py";
        }
        return;
      }
      at_ = std::min(at_ + (word() == "-X" || word() == "-W" ? 2 : 1), words_.size());
    }
  }

  void take_options_of_uv() {
    constexpr std::string_view kValues[] = {"--with", "--extra",     "--group",     "--python",
                                            "-p",     "--project",   "--env-file",  "--index",
                                            "--from", "--index-url", "--directory", "--package"};
    while (word().starts_with("-")) {
      if (word() == "--") {
        ++at_;
        return;
      }
      const bool module = word() == "-m" || word() == "--module";
      if (module) script_ = std::string(word(1).substr(word(1).rfind('.') + 1)) + ".py";
      at_ = std::min(at_ + (module || is_one_of(word(), kValues) ? 2 : 1), words_.size());
      if (module) return;
    }
  }

  void take_ballast() {
    ++at_;
    if (word() != command_ && is_command(word())) {
      fail(ErrorCode::usage, fmt::format("two commands, {} and {}: expected one", command_, word()),
           {{fmt::format("ballast {} ...", word()), "runs the second one"}});
    }
    if (word() == command_) ++at_;
  }

  // Up to the script, and the script; up to the first word that is no launcher's where there is
  // none.
  void take_launcher_options() {
    std::size_t end = at_;
    bool module = false;
    const auto is_end = [&](std::size_t i) {
      module = words_[i] == "-m" || words_[i] == "--module";
      return module || is_script(words_[i]) ||
             (base_name(words_[i]) == "ballast" && i + 1 < words_.size() &&
              is_command(words_[i + 1]));
    };
    while (end < words_.size() && !is_end(end)) ++end;
    if (end == words_.size()) return take_known_options();
    while (at_ < end) take_option(end, true);
    if (module) {
      ++at_;
      script_ = std::string(word().substr(word().rfind('.') + 1)) + ".py";
      at_ = std::min(at_ + 1, words_.size());
    }
  }

  void take_known_options() {
    while (word().starts_with("--")) {
      const std::string name = option_name(word());
      const bool value = is_one_of(name, kLauncherValues);
      if (!value && !is_one_of(name, kLauncherSwitches)) return;
      take_option(words_.size(), value);
    }
  }

  static std::string option_name(std::string_view word) {
    std::string name(word.substr(0, word.find('=')));
    name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
    std::ranges::replace(name, '-', '_');
    return name;
  }

  void take_option(std::size_t end, bool may_have_value) {
    const std::string_view option = word();
    ++at_;
    if (!option.starts_with("-")) return;
    const std::string name = option_name(option);
    if (name.empty()) return;
    std::string_view value;
    if (const std::size_t equals = option.find('='); equals != std::string_view::npos) {
      value = option.substr(equals + 1);
    } else if (may_have_value && at_ < end && !word().starts_with("-")) {
      value = word();
      ++at_;
    }
    const auto count = is_one_of(name, kCounts) ? count_of(value) : std::nullopt;
    if (name == "mixed_precision") {
      precision_ = value;
    } else if (count.value_or(1) > 1) {
      add_once(several_, fmt::format("--{} {}", name, *count));
    } else {
      add_once(options_, "--" + name);
    }
  }

  void put_notes(std::vector<std::string>& notes) const {
    if (!assignments_.empty()) {
      notes.push_back(
          fmt::format("ignored: {} (to set environment variables, write them before "
                      "`ballast`)",
                      printable(joined_names(assignments_), 400)));
    }
    if (!options_.empty()) {
      notes.push_back(fmt::format("ignored: launcher option{} {}", options_.size() == 1 ? "" : "s",
                                  printable(joined_names(options_), 400)));
    }
    if (!several_.empty()) {
      notes.push_back(fmt::format("one GPU is used ({}): {}", joined_names(several_), kOneGpu));
    }
  }

  std::string command_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
  bool pasted_ = false;  // something was in front of the flags
  std::string script_, precision_;
  std::vector<std::string> assignments_, options_, several_;  // names; counts of the last
};

// before: what an earlier --ranks says.
int number_of_ranks(std::string_view text, std::optional<int> before) {
  const Advice advice = {"--ranks 2", "trains with two processes on this host's processors"};
  if (text == "auto") {
    fail(ErrorCode::usage,
         "--ranks auto counts GPUs, and ranks compute on the CPU so far: expected a number",
         {advice});
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > HostMemory::kMaxRanks) {
    fail(ErrorCode::usage,
         fmt::format("--ranks {}: expected a number from 1 to {}",
                     text.empty() ? "without a value" : printable(text), HostMemory::kMaxRanks),
         {advice});
  }
  if (before.value_or(value) != value) {
    fail(ErrorCode::usage, fmt::format("--ranks {} and --ranks {}: expected one", *before, value));
  }
  return value;
}

}  // namespace

bool begins_pasted_line(std::string_view word, std::string_view next) {
  if (next.empty()) return false;
  const std::string_view name = base_name(word);
  if (name == "accelerate") return next == "launch";
  if (name == "uv") return next == "run";
  constexpr std::string_view kOthers[] = {"torchrun", "deepspeed", "ballast",
                                          "env",      "nohup",     "exec"};
  return is_python(name) || is_one_of(name, kOthers) || is_script(word) ||
         !assigned_name(word).empty();
}

PastedLine strip_launcher(std::string_view command, std::vector<std::string> arguments) {
  return LaunchLine(command, std::move(arguments)).strip();
}

std::optional<int> take_ranks(std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--ranks";
  std::optional<int> ranks;
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--";) {
    const bool joined = arguments[i].starts_with("--ranks=");
    if (!joined && arguments[i] != kFlag) {
      ++i;
      continue;
    }
    const std::size_t words = joined ? 1 : 2;
    const std::string text = joined                     ? arguments[i].substr(kFlag.size() + 1)
                             : i + 1 < arguments.size() ? arguments[i + 1]
                                                        : "";
    ranks = number_of_ranks(text, ranks);
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(at, at + static_cast<std::ptrdiff_t>(std::min(words, arguments.size() - i)));
  }
  return ranks;
}

JobProcess job_process() {
  const std::int64_t processes = count_in_environment("WORLD_SIZE").value_or(1);
  if (processes <= 1) return {};
  for (const char* const name : {"RANK", "LOCAL_RANK"}) {
    const std::int64_t rank = count_in_environment(name).value_or(0);
    if (rank <= 0) continue;
    return {.first = false,
            .note = fmt::format(
                "ended without doing anything: this is a second process of one job ({}={}, "
                "WORLD_SIZE={}), and the first one does all of it on one GPU; to run here as well, "
                "unset RANK and LOCAL_RANK",
                name, rank, processes)};
  }
  return {.first = true,
          .note = fmt::format("one GPU is used (WORLD_SIZE={}): {}; the other processes of this "
                              "job end at once",
                              processes, kOneGpu)};
}

}  // namespace ballast
