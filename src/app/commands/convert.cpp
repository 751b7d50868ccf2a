#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/command.h"
#include "app/commands/lora_argument.h"
#include "app/output.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/path_kind.h"
#include "core/progress.h"
#include "infer/model_folder.h"
#include "io/convert_file.h"
#include "models/wan/lora_merge.h"
#include "models/wan/lora_read.h"
#include "models/wan/lora_write.h"
#include "models/wan/published.h"
#include "models/wan/recognise.h"

namespace ballast {
namespace {

constexpr std::size_t kKeysShown = 8;

[[noreturn]] void wrong_usage(std::string message) {
  fail(ErrorCode::usage, std::move(message), {{"ballast convert --help", "shows all forms"}});
}

std::optional<DType> parse_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    if (name == name_of(t)) return t;
  }
  wrong_usage(fmt::format("--dtype {}: expected bf16, f16 or f32", printable(name)));
}

// The file or folder of a model's transformer, also in a folder that holds all of its parts.
std::string transformer_at(const std::string& model) {
  const std::string path = infer::model_path(model);
  return infer::holds_parts(path) ? infer::find_model_files(path).transformer : path;
}

// A preset's name, an id of the hub, or a file or folder of that model.
wan::Config model_config(const std::string& model) {
  const std::string path = transformer_at(model);
  if (!path_exists(path)) {  // shapes are all that is needed
    if (const auto known = wan::find_published(path)) return known->config;
  }
  const WeightFiles checkpoint = WeightFiles::open(path, DiskMode::buffered);
  const wan::TensorMap names(checkpoint);
  if (auto found = wan::recognise(checkpoint, names)) return found->config;
  fail(ErrorCode::input, fmt::format("{} is no model Ballast knows", model),
       {{"ballast inspect " + model, "shows what it is"}});
}

void warn_unused(std::span<const std::string> keys) {
  for (std::size_t i = 0; i < std::min(keys.size(), kKeysShown); ++i) {
    log::warn("not used: {}", printable(keys[i], 400));
  }
  if (keys.size() > kKeysShown) log::warn("not used: {} more", keys.size() - kKeysShown);
}

// "rank 16" or "ranks 8 to 32"
std::string ranks_of(std::span<const wan::LoraModule> modules) {
  std::int64_t least = 0, most = 0;
  for (const wan::LoraModule& m : modules) {
    if (m.rank == 0) continue;
    least = least == 0 ? m.rank : std::min(least, m.rank);
    most = std::max(most, m.rank);
  }
  return least == most ? fmt::format("rank {}", most) : fmt::format("ranks {} to {}", least, most);
}

// ballast convert lora: one dialect into another. ballast convert merge: LoRAs into a model.
// ballast convert model: a PyTorch or GGUF file into safetensors.
class Convert : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("KIND", kind_, "lora, merge or model")->required();
    app.add_option("FILES", files_,
                   "lora and model: IN OUT; merge: MODEL LORA[:STRENGTH]... OUT. Inputs are files "
                   "or folders")
        ->required();
    app.add_option("--to", to_, "lora: comfy, kohya or peft");
    app.add_option("--dtype", dtype_, "bf16, f16 or f32; as it is without it");
    app.add_option("--model", model_,
                   "lora: a model's file or name; shapes are checked against it, and kohya files "
                   "are completed for it");
    app.add_flag("--json", json_, "print one JSON document, sizes in bytes");
    app.footer(
        "ballast convert lora IN OUT --to comfy|kohya|peft [--dtype bf16|f16|f32]\n"
        "ballast convert merge MODEL LORA[:STRENGTH]... OUT [--dtype bf16|f16|f32]\n"
        "ballast convert model IN.pth|IN.gguf OUT.safetensors [--dtype bf16|f16|f32]");
  }

  void run() override {
    if (kind_ == "lora") return convert_lora();
    if (kind_ == "merge") return merge();
    if (kind_ == "model") return convert_model();
    const std::vector<std::string_view> known = {"lora", "merge", "model"};
    wrong_usage(fmt::format("convert has no form {}{}; there are lora, merge and model",
                            printable(kind_), suggestion(kind_, known)));
  }

 private:
  void convert_lora() const;
  void merge() const;
  void convert_model() const;

  // What was written, as text or as JSON.
  void report(const std::string& text, const nlohmann::ordered_json& facts) const {
    print((json_ ? facts.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                 : text) +
          "\n");
  }

  bool json_ = false;
  std::string kind_, to_, dtype_, model_;
  std::vector<std::string> files_;
};

const RegisterCommand<Convert> kConvert(
    "convert", "a LoRA into another dialect or into a model, a model into safetensors");

void Convert::convert_lora() const {
  if (files_.size() != 2) {
    wrong_usage(fmt::format("convert lora takes IN and OUT, {} given", files_.size()));
  }
  if (to_.empty()) wrong_usage("convert lora needs --to comfy, kohya or peft");
  const auto format = wan::find_lora_format(to_);
  if (!format) {
    const std::vector<std::string_view> known = {"comfy", "kohya", "peft"};
    wrong_usage(fmt::format("--to {}: expected comfy, kohya or peft{}", printable(to_),
                            suggestion(to_, known)));
  }
  const std::optional<DType> dtype = parse_dtype(dtype_);
  std::optional<wan::Config> model;
  if (!model_.empty()) model = model_config(model_);
  const auto lora = wan::LoraReader::open(files_[0], model ? &*model : nullptr, DiskMode::buffered);
  warn_unused(lora.unused());
  const auto written = while_doing("writing " + printable(files_[1]), [&] {
    return wan::write_lora(files_[1], lora.modules(),
                           {.format = *format,
                            .dtype = dtype,
                            .metadata = lora.metadata(),
                            .model = model ? &*model : nullptr});
  });
  std::string text = fmt::format("{}: {} modules, {}, from {} to {}, {}", files_[1],
                                 written.modules, ranks_of(lora.modules()), name_of(lora.dialect()),
                                 name_of(*format), Bytes{written.bytes});
  if (written.filled > 0) {
    text += fmt::format(
        "\n  {} of them are zeros: {} leaves them out, diffusers reads kohya files only "
        "when they are complete",
        written.filled, files_[0]);
  }
  report(text, {{"output", files_[1]},
                {"modules", written.modules},
                {"filled", written.filled},
                {"from", name_of(lora.dialect())},
                {"to", name_of(*format)},
                {"bytes", written.bytes}});
}

void Convert::merge() const {
  if (files_.size() < 3) {
    wrong_usage(fmt::format("convert merge takes MODEL, at least one LORA and OUT, {} given",
                            files_.size()));
  }
  if (!to_.empty() || !model_.empty()) wrong_usage("--to and --model belong to convert lora");
  wan::MergeOptions options{.dtype = parse_dtype(dtype_), .progress = {}};
  const std::string& out = files_.back();
  const WeightFiles model = WeightFiles::open(transformer_at(files_.front()), DiskMode::buffered);
  for (const std::string& warning : model.warnings()) log::warn("{}", warning);
  const wan::TensorMap names(model);
  std::vector<wan::LoraReader> loras;
  std::vector<wan::LoraStrength> strengths;
  loras.reserve(files_.size());
  for (std::size_t i = 1; i + 1 < files_.size(); ++i) {
    const auto [path, strength] = path_and_strength(files_[i]);
    loras.push_back(wan::LoraReader::open(path, nullptr, DiskMode::buffered));
    strengths.push_back({.lora = &loras.back(), .strength = strength});
  }
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  wan::LoraMerge merge(model, names, strengths, pool);
  warn_unused(merge.unused());
  const std::uint64_t bytes = wan::merged_bytes(model, names, options);
  {
    Progress progress("merging", static_cast<std::int64_t>(bytes), Progress::Unit::bytes);
    options.progress = [&](std::uint64_t n) { progress.add(static_cast<std::int64_t>(n)); };
    while_doing("writing " + printable(out),
                [&] { wan::write_merged(out, model, names, merge, options); });
  }
  report(fmt::format("{}: {} of {} tensors changed by {} {}, {}", out, merge.changed(),
                     names.tensors().size(), loras.size(), loras.size() == 1 ? "LoRA" : "LoRAs",
                     Bytes{bytes}),
         {{"output", out},
          {"changed", merge.changed()},
          {"tensors", names.tensors().size()},
          {"loras", loras.size()},
          {"bytes", bytes}});
}

void Convert::convert_model() const {
  if (files_.size() != 2) {
    wrong_usage(fmt::format("convert model takes IN and OUT, {} given", files_.size()));
  }
  if (!to_.empty() || !model_.empty()) wrong_usage("--to and --model belong to convert lora");
  const std::string from = infer::model_path(files_[0]);
  const std::string& out = files_[1];
  if (!out.ends_with(".safetensors")) {
    wrong_usage(fmt::format("{}: convert model writes a .safetensors file", printable(out)));
  }
  std::optional<Progress> progress;
  ConvertOptions options;
  options.dtype = parse_dtype(dtype_);
  options.begin = [&](std::uint64_t total) {
    progress.emplace("converting", static_cast<std::int64_t>(total), Progress::Unit::bytes);
  };
  options.progress = [&](std::uint64_t n) { progress->add(static_cast<std::int64_t>(n)); };
  const ConvertedFile done = while_doing(
      "writing " + printable(out), [&] { return convert_to_safetensors(from, out, options); });
  progress.reset();
  for (const std::string& note : done.notes) log::warn("{}", note);
  report(fmt::format("{}: {} {} of a {} file, {}", out, done.tensors,
                     done.tensors == 1 ? "tensor" : "tensors", done.container, Bytes{done.bytes}),
         {{"output", out},
          {"tensors", done.tensors},
          {"container", done.container},
          {"bytes", done.bytes}});
}

}  // namespace
}  // namespace ballast
