#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "app/command.h"
#include "app/commands/lora_argument.h"
#include "app/commands/prompt_lines.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "data/tokenizer.h"
#include "infer/model_folder.h"
#include "infer/text_generator.h"
#include "io/atomic_file.h"
#include "io/hub_cache.h"
#include "memory/gpu.h"
#include "models/t5/fit_job.h"
#include "models/t5/published.h"
#include "report/memory_monitor.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kMaxGeneratePrompts = 100'000;

bool stores_f32(std::span<const WeightGroup> groups) {
  return std::ranges::any_of(groups, [](const WeightGroup& g) {
    return std::ranges::any_of(g.tensors, [](const StoredTensor& t) {
      return t.data.dtype == DType::f32 && t.data.shape.rank() > 1;
    });
  });
}

// ballast generate: text from prompts, by an encoder-decoder of the T5 family. The texts go to
// stdout, a line each, in the order of the prompts; everything else is on stderr.
class Generate : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  infer::AppliedAdapter take_adapter();
  std::vector<std::string> prompts() const;
  infer::TextModelOptions model_options() const;
  std::vector<Tokens> tokens(const infer::TextGenerator& model, const data::Tokenizer& tokenizer,
                             const std::vector<std::string>& texts) const;
  std::vector<fit::Change> changes(const fit::Request& request) const;
  void show_plan(const fit::PlannedRun& run, const PlanTitle& title);
  void write(const std::string& text) const;

  std::string model_, lora_, tokenizer_, prompt_, prompt_file_, prefix_, output_;
  std::int64_t max_source_ = 512;
  infer::GenerateOptions options_;
  MachineOptions machine_;
  std::string dtype_;
  bool plan_only_ = false, details_ = false;
  Json result_ = Json::object();
};

const RegisterCommand<Generate> kGenerate("generate", "text from prompts, by a T5 model");

void Generate::declare(CLI::App& app) {
  app.add_option("--model,--model-name-or-path,model", model_,
                 "a folder as Hugging Face has it, or a file of the model");
  app.add_option("--lora", lora_,
                 "an adapter's folder as `ballast train --lora_rank` or PEFT write it; \":0.8\" "
                 "behind it: its strength");
  app.add_option("--prompt,prompt", prompt_, "what the model reads");
  app.add_option("--prompt-file", prompt_file_,
                 "a prompt per line; - or nothing at all: those of standard input");
  app.add_option("--source-prefix", prefix_, "put before every prompt: \"summarize: \"");
  app.add_option("--tokenizer", tokenizer_, "where the model's folder has none");
  app.add_option("--output", output_, "a file for the texts instead of standard output");
  app.add_option("--max-source-length", max_source_, "tokens of a prompt; the rest is cut off")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-new-tokens,--max-length", options_.max_new_tokens, "of each text")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--num-beams,--beams", options_.beams, "1: the best token, again and again")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--length-penalty", options_.length_penalty, "of beam search")
      ->capture_default_str();
  app.add_flag("--early-stopping", options_.early_stopping,
               "end as soon as as many texts are finished as there are beams");
  declare_machine(app, machine_,
                  {"device", "verify_weights", "threads", "gpu", "ram", "ignore_limits", "policy",
                   "weights", "json"});
  app.add_option("--dtype", dtype_, "computed in; without, f32 on the CPU, bf16 on a GPU")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_flag("--plan", plan_only_, "print the plan and do nothing");
  app.add_flag("--details", details_, "the plan with memory by phase");
}

std::vector<std::string> Generate::prompts() const {
  if (!prompt_.empty() && !prompt_file_.empty()) {
    fail(ErrorCode::usage, "--prompt and --prompt-file: one of them");
  }
  if (!prompt_.empty()) return {prompt_};
  return read_prompts(prompt_file_.empty() ? "-" : prompt_file_, kMaxGeneratePrompts);
}

infer::TextModelOptions Generate::model_options() const {
  infer::TextModelOptions o;
  const train::RunTarget target = train::this_machine(machine_);
  o.device = target.backend.device;
  o.profile = target.profile;
  o.threads = machine_.threads;
  o.verify_weights = machine_.verify_weights;
  o.budget = train::resolve_budget(target, machine_);
  if (!dtype_.empty()) o.dtype = dtype_ == "bf16" ? DType::bf16 : DType::f32;
  o.format = machine_.weights;
  o.policy = find_policy(machine_.policy);
  return o;
}

std::vector<Tokens> Generate::tokens(const infer::TextGenerator& model,
                                     const data::Tokenizer& tokenizer,
                                     const std::vector<std::string>& texts) const {
  if (tokenizer.vocab_size() > model.config().vocabulary) {
    fail(ErrorCode::input, "{} has {} tokens, the model knows {}", tokenizer.path(),
         tokenizer.vocab_size(), model.config().vocabulary);
  }
  std::vector<Tokens> all;
  std::size_t cut = 0;
  const auto most = to_size(max_source_);
  for (const std::string& text : texts) {
    Tokens ids = tokenizer.encode(prefix_ + text);
    if (ids.size() >= most) ids.resize(most - 1), ++cut;
    ids.push_back(tokenizer.eos_id());
    all.push_back(std::move(ids));
  }
  if (cut > 0) {
    log::warn("{} of {} prompts have more than {} tokens: the rest is not seen", cut, texts.size(),
              most - 1);
  }
  return all;
}

// What the user can type besides larger budgets.
std::vector<fit::Change> Generate::changes(const fit::Request& request) const {
  std::vector<fit::Change> all;
  const auto add = [&](std::string text, auto apply) {
    all.push_back({std::move(text),
                   [apply](fit::Request& r) { apply(r.job.as<t5::DecoderFitJob>().decoder); }});
  };
  const auto& job = request.job.as<t5::DecoderFitJob>();
  if (options_.beams > 1) add("--num-beams 1", [](t5::DecoderJob& d) { d.beams = 1; });
  if (const std::int64_t tokens = options_.max_new_tokens / 2; tokens > 0) {
    add(fmt::format("--max-new-tokens {}", tokens),
        [tokens](t5::DecoderJob& d) { d.positions = tokens; });
  }
  if (const std::int64_t tokens = job.decoder.sources.back() / 2; tokens >= 16) {
    add(fmt::format("--max-source-length {}", tokens), [tokens](t5::DecoderJob& d) {
      for (std::int64_t& source : d.sources) source = std::min(source, tokens);
      const auto repeated = std::ranges::unique(d.sources);  // they are sorted
      d.sources.erase(repeated.begin(), repeated.end());
    });
  }
  const bool narrower = machine_.weights == WeightFormat::f32 ||
                        (machine_.weights == WeightFormat::stored && stores_f32(job.weights));
  if (narrower) add("--weights bf16", [](t5::DecoderJob& d) { d.format = WeightFormat::bf16; });
  if (machine_.policy != "auto") {
    all.push_back({"--policy auto", [](fit::Request& r) { r.policy.reset(); }});
  }
  return all;
}

void Generate::show_plan(const fit::PlannedRun& run, const PlanTitle& title) {
  if (machine_.json) {
    result_["model"] = title.model;
    result_["plan"] = {{"policy", run.policy.name},
                       {"device_bytes", run.needed(Tier::device).count},
                       {"host_bytes", run.needed(Tier::host).count}};
    return;
  }
  const PlanView view = {
      .plan = run.plan,
      .times = run.times,
      .lines = run.lines,
      .policy = run.policy.name,
      .policy_text = t5::weights_text(run.job.as<t5::DecoderFitJob>().decoder.config, run.policy)};
  if (plan_only_ || details_) {
    const std::string text =
        plan_table(title, view, {.details = details_, .columns = text_columns(stdout)});
    plan_only_ ? print(text) : log::info("{}", text);
  } else {
    log::info("{} ({}, {})", verdict_line(title, view), title.shape, view.policy_text);
  }
}

void Generate::write(const std::string& text) const {
  if (output_.empty()) return print(text);
  write_text_file(output_, text);
}

// An adapter may be named as such or in the model's place, and knows what it belongs to.
infer::AppliedAdapter Generate::take_adapter() {
  infer::AppliedAdapter adapter;
  if (!lora_.empty()) std::tie(adapter.folder, adapter.strength) = path_and_strength(lora_);
  if (adapter.folder.empty() && t5::is_adapter_folder(model_)) {
    adapter.folder = std::exchange(model_, "");
  }
  if (!adapter.folder.empty() && !t5::is_adapter_folder(adapter.folder)) {
    fail(ErrorCode::input, fmt::format("{} has no {}", adapter.folder, t5::kAdapterConfigFile),
         {{"--lora FOLDER", "holds adapter_config.json and adapter_model.safetensors"}});
  }
  if (!adapter.folder.empty() && model_.empty()) {
    model_ = t5::read_adapter_config(adapter.folder).base_model;
  }
  return adapter;
}

void Generate::run() {
  const infer::AppliedAdapter adapter = take_adapter();
  if (model_.empty()) {
    fail(ErrorCode::usage, "there is no model to generate with",
         {{"--model FOLDER", "a T5 or FLAN-T5 model as Hugging Face has it"}});
  }
  const infer::TextModelOptions options = model_options();
  const std::string named = infer::model_path(model_);
  if (!std::filesystem::exists(named)) {
    if (const auto known = t5::find_published(named)) fail_not_downloaded(model_, known->id);
  }
  const std::string folder = infer::model_snapshot(named);
  const infer::TextGenerator model(folder, options, adapter);
  // Beside the weights, where a file of them is named.
  const std::string beside = std::filesystem::is_directory(folder)
                                 ? folder
                                 : std::filesystem::absolute(folder).parent_path().string();
  const data::Tokenizer tokenizer = data::Tokenizer::open(
      tokenizer_.empty() ? beside : resolve_model_path(tokenizer_, HubUse::tokenizer).path);
  const std::vector<std::string> texts = prompts();
  const std::vector<Tokens> sources = tokens(model, tokenizer, texts);
  std::vector<std::int64_t> lengths;
  for (const Tokens& ids : sources) lengths.push_back(std::ssize(ids));
  fit::PlannedRun planned = model.require_plan(
      lengths, options_,
      [this](std::span<const fit::Request> refused) { return changes(refused.front()); });
  show_plan(planned, model.title(lengths, options_));
  const bool gpu = options.device == Device::cuda;
  const MemoryNumbers numbers = {
      .device = gpu ? planned.needed(Tier::device) : planned.plan.peak_of(Tier::device),
      .host = planned.plan.peak_of(Tier::host),
      .disk = {},
      .ram = planned.needed_ram()};
  planned.set = {};  // it is recorded again, with kernels
  if (plan_only_) {
    if (machine_.json) print(result_.dump(2) + "\n");
    return;
  }
  MemoryMonitor monitor(numbers, gpu ? gpu_memory_of_process : std::function<Bytes()>());
  const Stopwatch begin;
  std::int64_t steps = 0;
  std::vector<Tokens> written;
  {
    Progress progress("writing texts", std::ssize(sources));
    written = model.generate(sources, options_, [&](const infer::GeneratedToken& t) {
      ++steps;
      if (t.last) progress.add();
      monitor.sample({.device = t.device, .host = t.host, .disk = {}, .ram = {}},
                     steps == 1 ? Counting::exact : Counting::quick);
    });
  }
  const double seconds = begin.seconds();
  std::string lines;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::string text = tokenizer.decode(written[i]);
    if (machine_.json) {
      result_["texts"].push_back({{"prompt", texts[i]}, {"text", text}, {"tokens", written[i]}});
    }
    lines += text + "\n";
  }
  if (!machine_.json || !output_.empty()) write(lines);
  if (!machine_.json) {
    log::info("{} steps in {:.1f} s; RAM: planned {}, measured {}", steps, seconds,
              monitor.planned().ram, monitor.most().ram);
    return;
  }
  result_["seconds"] = seconds;
  const auto shown = [](const MemoryNumbers& m) {
    Json j;
    MemoryNumbers::each(m, [&](const char* name, Bytes b) { j[name] = b.count; });
    return j;
  };
  result_["planned"] = shown(monitor.planned());
  result_["measured"] = shown(monitor.most());
  print(result_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace
}  // namespace ballast
