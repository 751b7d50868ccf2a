#include "app/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>

#include "app/command.h"
#include "app/commands/sample_student.h"
#include "app/planning.h"
#include "models/wan/config.h"
#include "nn/option_words.h"
#include "report/flight_record.h"
#include "report/run_log.h"
#include "train/config/read_config.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

// What a word may be, besides a flag.
enum class Values : std::uint8_t { none, words, folders, runs, configs, models, any_file, targets };

struct Flag {
  std::string name;  // "--gpu"
  Values values = Values::none;
  std::vector<std::string> words = {};
  std::string help = {};
};

struct Grammar {
  std::vector<Flag> flags;
  std::vector<Flag> positionals;
};

// Flags whose value is not told by its type: by the last word of their name, or the whole of it.
Values values_of_name(std::string_view name) {
  constexpr std::pair<std::string_view, Values> kByName[] = {
      {"target", Values::targets}, {"run", Values::runs},        {"resume", Values::runs},
      {"alive", Values::runs},     {"config", Values::configs},  {"toml", Values::configs},
      {"model", Values::models},   {"dit", Values::models},      {"vae", Values::models},
      {"t5", Values::models},      {"clip", Values::models},     {"lora", Values::models},
      {"encoder", Values::models}, {"weights", Values::models},  {"checkpoint", Values::models},
      {"noise", Values::models},   {"dir", Values::folders},     {"folder", Values::folders},
      {"out", Values::any_file},   {"output", Values::any_file}, {"prompt", Values::none},
      {"grid", Values::none},      {"versus", Values::none}};
  const std::size_t last = name.find_last_of("-_");
  const std::string_view end = last == name.npos ? name : name.substr(last + 1);
  for (const auto& [known, values] : kByName) {
    if (known == name || known == end) return values;
  }
  return Values::any_file;
}

// "infer, lora or full" and "f32 or bf16: what is computed with" are the words that a flag takes.
std::vector<std::string> words_in(std::string help) {
  for (std::size_t open = 0; (open = help.find(" (")) != help.npos;) {
    const std::size_t close = help.find(')', open);
    help.erase(open, close == help.npos ? close : close - open + 1);
  }
  help = help.substr(0, help.find_first_of(":;"));
  const std::size_t last = help.rfind(" or ");
  if (last == help.npos) return {};
  help.replace(last, 4, ", ");
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= help.size();) {
    const std::size_t end = std::min(help.find(", ", at), help.size());
    words.push_back(help.substr(at, end - at));
    at = end + 2;
  }
  const auto is_word = [](const std::string& w) {
    return !w.empty() && std::ranges::all_of(w, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  return std::ranges::all_of(words, is_word) ? words : std::vector<std::string>{};
}

// Dashes and underscores are alike.
std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

// As it is shown where nothing was typed yet, otherwise as its beginning was.
std::string spelled(const std::string& name, const std::string& begun) {
  const auto inside = [&](char c) { return begun.find(c, 2) != begun.npos; };
  std::string text = name;
  if (begun.size() > 2 && inside('_')) std::ranges::replace(text, '-', '_');
  if (begun.size() > 2 && inside('-')) std::ranges::replace(text, '_', '-');
  if (text.starts_with("__")) text.replace(0, 2, "--");
  return text;
}

Flag flag_of(const train::FlagInfo& f) {
  Flag flag = {.name = "--" + f.name, .help = f.help};
  if (!f.takes_value) return flag;
  flag.words = f.words;
  flag.values = flag.words.empty() ? values_of_name(f.name) : Values::words;
  return flag;
}

// Numbers and sizes have no candidates.
bool is_text(const CLI::Option& o) {
  const std::string type = o.get_type_name();
  return type.starts_with("TEXT") || type.starts_with("NAME") || type.empty();
}

Flag flag_of(const CLI::Option& o, const std::string& name) {
  Flag flag = {.name = name, .help = o.get_description()};
  if (o.get_type_size() == 0 || !is_text(o)) return flag;
  flag.words = words_in(flag.help);
  std::string plain = name;
  plain.erase(0, plain.find_first_not_of('-'));
  flag.values = flag.words.empty() ? values_of_name(plain) : Values::words;
  return flag;
}

void add_options(const CLI::App& app, Grammar& to) {
  for (const CLI::Option* o : app.get_options()) {
    if (o->get_positional()) to.positionals.push_back(flag_of(*o, o->get_name(true)));
    for (const std::string& n : o->get_lnames()) to.flags.push_back(flag_of(*o, "--" + n));
  }
}

// Flags that machine_flags.cpp and the trainers' tables declare know their words.
void add_table(const std::vector<train::FlagInfo>& table, Grammar& to) {
  for (const train::FlagInfo& f : table) {
    const auto known = std::ranges::find(to.flags, "--" + dashed(f.name),
                                         [](const Flag& g) { return dashed(g.name); });
    if (known == to.flags.end()) {
      to.flags.push_back(flag_of(f));
    } else if (!f.words.empty() && known->words.empty()) {
      known->words = f.words;
      known->values = Values::words;
    }
  }
}

// Flags that a help page lists below the options: "  --lr VALUE    of the optimizer".
void add_listed(const std::string& footer, Grammar& to) {
  for (std::size_t at = 0; at < footer.size();) {
    const std::size_t end = std::min(footer.find('\n', at), footer.size());
    const std::string line = footer.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with("  --")) continue;
    const std::size_t space = std::min(line.find(' ', 2), line.size());
    const std::size_t gap = line.find("  ", space);
    const bool takes_value = line.find("VALUE", space) < gap;
    const std::size_t text = gap == line.npos ? gap : line.find_first_not_of(' ', gap);
    add_table({{.name = line.substr(4, space - 4),
                .takes_value = takes_value,
                .help = text == line.npos ? "" : line.substr(text)}},
              to);
  }
}

std::vector<train::FlagInfo> machine_flags() {
  MachineOptions none;
  std::vector<train::FlagInfo> all;
  MachineOptions::fields(none, [&](std::string_view name, auto&& field, std::string_view) {
    if constexpr (requires { option_words(field); }) {
      all.push_back({.name = std::string(name), .help = "", .words = option_words(field)});
    }
  });
  return all;
}

Grammar grammar_of(std::string_view name, Command& command, const CLI::App& app) {
  Grammar g;
  add_options(app, g);
  std::vector<train::FlagInfo> words = machine_flags();
  std::erase_if(words, [&](const train::FlagInfo& f) {
    return f.words.empty() || std::ranges::none_of(g.flags, [&](const Flag& have) {
             return dashed(have.name) == "--" + dashed(f.name);
           });
  });
  add_table(words, g);
  if (command.help_page({"--help-all"})) {  // it takes the flags of trainers
    add_table(own_flag_infos(), g);
    add_table(train::trainer_flags(), g);
    for (const char* page : {"all", "diffusion-pipe", "musubi", "flow-matching", "t5"}) {
      const std::string flag = std::string("--help-") + page;
      if (command.help_page({flag})) g.flags.push_back({.name = flag});
    }
  }
  if (name == "distill") add_table(own_flag_infos(), g);
  add_listed(app.get_footer(), g);
  if (name == "sample") add_table(StudentSample().flag_infos(), g);
  if (g.positionals.empty() && command.takes({})) {
    g.positionals.push_back({.name = "config", .values = Values::configs});
  }
  if (name == "plan") g.positionals.push_back({.name = "config", .values = Values::configs});
  return g;
}

bool ends_with_any(const std::string& name, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
}

bool shows(const std::string& file, Values values) {
  constexpr std::string_view kConfigs[] = {".toml"};
  constexpr std::string_view kModels[] = {".safetensors", ".gguf", ".pth", ".index.json"};
  switch (values) {
    case Values::configs:
      return ends_with_any(file, kConfigs);
    case Values::models:
      return ends_with_any(file, kModels);
    case Values::any_file:
      return true;
    default:
      return false;
  }
}

// What begins with `begun` on the disk. Hidden files only where a dot was typed.
void add_files(const std::string& begun, Values values, std::vector<Candidate>& to) {
  const std::size_t slash = begun.rfind('/');
  const std::string folder = slash == begun.npos ? "" : begun.substr(0, slash + 1);
  const std::string start = begun.substr(folder.size());
  const char* const home = std::getenv("HOME");
  const bool at_home = folder.starts_with("~/") && home != nullptr;
  std::error_code error;
  fs::directory_iterator at(at_home          ? home + folder.substr(1)
                            : folder.empty() ? "."
                                             : folder,
                            error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(start) || (start.empty() && name.starts_with('.'))) continue;
    if (name.find_first_of("\t\n") != name.npos) continue;  // the answer has lines
    std::error_code unreadable;
    if (at->is_directory(unreadable)) {
      const bool run = fs::exists(at->path() / kFlightFile, unreadable) ||
                       fs::exists(at->path() / kRunLogFile, unreadable);
      to.push_back({folder + name + "/", run ? "a run" : ""});
    } else if (shows(name, values)) {
      to.push_back({folder + name, ""});
    }
  }
}

std::vector<std::string> target_names() {
  std::vector<std::string> names = {"this"};
  for (const MachineProfile& p : bundled_profiles()) names.emplace_back(p.name);
  return names;
}

void add_words(const std::vector<std::string>& words, const std::string& begun,
               std::vector<Candidate>& to) {
  for (const std::string& w : words) {
    if (w.starts_with(begun)) to.push_back({w, ""});
  }
}

void add_values(const Flag& flag, const std::string& begun, std::vector<Candidate>& to) {
  switch (flag.values) {
    case Values::none:
      return;
    case Values::words:
      return add_words(flag.words, begun, to);
    case Values::targets:
      return add_words(target_names(), begun, to);
    case Values::models:
      if (flag.name == "--model") {
        for (const wan::Config& c : wan::presets()) add_words({std::string(c.name)}, begun, to);
      }
      break;
    default:
      break;
  }
  add_files(begun, flag.values, to);
}

// The first sentence, short enough for a line beside the word.
std::string one_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  constexpr std::size_t kMax = 72;
  if (text.size() <= kMax) return text;
  const std::size_t space = text.rfind(' ', kMax);
  return text.substr(0, space == text.npos ? kMax : space) + " ...";
}

// "--gpu", "=", "8" is "--gpu=8" of a shell that splits at "=".
bool joined_by_equals(const std::vector<std::string>& words, std::size_t i) {
  return i > 0 && i < words.size() && words[i] == "=" && words[i - 1].starts_with("--");
}

std::vector<Candidate> commands_beginning_with(const std::string& begun) {
  std::vector<Candidate> all;
  const auto add = [&](std::string_view word, std::string_view help) {
    if (word.starts_with(begun)) all.push_back({std::string(word), std::string(help)});
  };
  for (const CommandInfo& c : commands()) add(c.name, c.summary);
  add("help", "the options of a command");
  if (begun.starts_with('-')) {
    add("--help", "the commands");
    add("--version", "the version");
  }
  return all;
}

class Completer {
 public:
  Completer(const Grammar& grammar, std::vector<std::string> words)
      : grammar_(grammar), words_(std::move(words)) {}

  std::vector<Candidate> run() {
    std::vector<Candidate> all;
    const std::string& last = words_.back();
    const std::size_t n = words_.size();
    if (joined_by_equals(words_, n - 1)) return value_of(words_[n - 2], "", "");
    if (n > 1 && joined_by_equals(words_, n - 2)) return value_of(words_[n - 3], last, "");
    const std::size_t equals = last.find('=');
    if (last.starts_with("--") && equals != last.npos) {
      return value_of(last.substr(0, equals), last.substr(equals + 1), last.substr(0, equals + 1));
    }
    if (last.starts_with('-')) return flags(last);
    if (const Flag* open = open_flag()) return value_of(open->name, last, "");
    if (const Flag* p = positional()) add_values(*p, last, all);
    if (all.empty() && last.empty()) return flags("--");
    return all;
  }

 private:
  const Flag* find(const std::string& name) const {
    const auto at = std::ranges::find(grammar_.flags, dashed(name),
                                      [](const Flag& f) { return dashed(f.name); });
    return at == grammar_.flags.end() ? nullptr : &*at;
  }
  std::vector<Candidate> value_of(const std::string& name, const std::string& begun,
                                  const std::string& before) const {
    std::vector<Candidate> all;
    if (const Flag* f = find(name)) add_values(*f, begun, all);
    for (Candidate& c : all) c.word = before + c.word;
    return all;
  }
  std::vector<Candidate> flags(const std::string& begun) const {
    std::vector<Candidate> all;
    for (const Flag& f : grammar_.flags) {
      if (!dashed(f.name).starts_with(dashed(begun))) continue;
      all.push_back({spelled(f.name, begun), one_line(f.help)});
    }
    return all;
  }
  // The flag before the last word, where it takes a value.
  const Flag* open_flag() const {
    if (words_.size() < 2) return nullptr;
    const std::string& before = words_[words_.size() - 2];
    const Flag* f = before.starts_with("--") ? find(before) : nullptr;
    const bool takes = f != nullptr && f->values != Values::none;
    return takes ? f : nullptr;
  }
  const Flag* positional() const {
    return grammar_.positionals.empty() ? nullptr : &grammar_.positionals.front();
  }

  const Grammar& grammar_;
  std::vector<std::string> words_;
};

std::vector<Candidate> complete_command(const CommandInfo& info, std::vector<std::string> words) {
  const std::unique_ptr<Command> command = info.make();
  CLI::App app(std::string(info.summary), "ballast " + std::string(info.name));
  command->declare(app);
  const auto parts = app.get_subcommands([](const CLI::App*) { return true; });
  if (parts.empty()) return Completer(grammar_of(info.name, *command, app), words).run();
  if (words.size() == 1) {
    std::vector<Candidate> all;
    for (const CLI::App* part : parts) {
      if (part->get_name().starts_with(words[0])) {
        all.push_back({part->get_name(), part->get_description()});
      }
    }
    return all;
  }
  for (const CLI::App* part : parts) {
    if (part->get_name() != words[0]) continue;
    words.erase(words.begin());
    return Completer(grammar_of(info.name, *command, *part), words).run();
  }
  return {};
}

}  // namespace

std::vector<Candidate> complete(std::vector<std::string> words) {
  if (words.empty()) words.emplace_back();
  std::vector<Candidate> all;
  const bool help = words.size() == 2 && words[0] == "help";
  if (words.size() == 1 || help) {
    all = commands_beginning_with(words.back());
  } else {
    for (const CommandInfo& c : commands()) {
      if (c.name == words[0]) all = complete_command(c, {words.begin() + 1, words.end()});
    }
  }
  std::ranges::stable_sort(all, {}, &Candidate::word);
  const auto twins = std::ranges::unique(all, {}, &Candidate::word);
  all.erase(twins.begin(), twins.end());
  return all;
}

std::string completion_lines(const std::vector<std::string>& words) {
  std::string text;
  for (const Candidate& c : complete(words)) {
    text += c.help.empty() ? c.word + "\n" : c.word + "\t" + one_line(c.help) + "\n";
  }
  return text;
}

}  // namespace ballast
