#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/inspect_parts.h"
#include "app/golden/file.h"
#include "app/output.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "infer/model_folder.h"
#include "io/weight_file_parts.h"
#include "models/t5/recognise.h"
#include "models/wan/lora_file.h"
#include "models/wan/recognise.h"
#include "models/wan_vae/weights.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// What is shown unless --tensors asks for all.
constexpr std::size_t kFirstTensors = 8, kLastTensors = 4;
constexpr std::size_t kProblemsShown = 20;
constexpr std::size_t kMetadataShown = 16, kMetadataBytes = 100;

struct DTypeTotal {
  std::uint64_t tensors = 0, elements = 0, bytes = 0;
};

struct Totals {
  std::map<FileDType, DTypeTotal> by_dtype;
  DTypeTotal all;
};

Totals totals_of(const WeightFiles& checkpoint) {
  Totals totals;
  for (const WeightTensor& t : checkpoint.tensors()) {
    for (DTypeTotal* to : {&totals.all, &totals.by_dtype[t.entry->dtype]}) {
      ++to->tensors;
      to->elements += static_cast<std::uint64_t>(t.entry->shape.elements());
      to->bytes += t.entry->bytes;
    }
  }
  return totals;
}

std::string container_of(const WeightFiles& checkpoint) {
  const bool sharded = checkpoint.files().size() > 1;
  const std::string_view kind = checkpoint.files()[0].header().container();
  if (is_folder(checkpoint.path())) {
    return sharded ? fmt::format("folder, sharded {}", kind)
                   : fmt::format("folder, one {} file", kind);
  }
  return sharded ? fmt::format("sharded {}", kind) : std::string(kind);
}

// What the tensors are: pairs of a word and its value, and what is wrong with them.
struct Content {
  std::string kind = "tensors of no model Ballast knows";
  std::vector<std::pair<std::string, Json>> facts;
  std::vector<std::string> problems;

  void fact(std::string name, Json value) { facts.emplace_back(std::move(name), std::move(value)); }
};

bool is_golden(const WeightFiles& checkpoint) {
  const Metadata& metadata = checkpoint.files()[0].metadata();
  const auto format = metadata.find("format");
  return format != metadata.end() && format->second == "ballast-golden-1";
}

Content golden_content(const std::string& path) {
  const GoldenFile golden = GoldenFile::open(path);
  std::int64_t inputs = 0, results = 0, weights = 0;
  for (const SafetensorsEntry& e : golden.entries()) {
    ++(GoldenFile::is_result(e.name) ? results : e.name.starts_with("in.") ? inputs : weights);
  }
  Content c;
  c.kind = "golden file";
  c.fact("case", golden.case_name());
  c.fact("weights", weights);
  c.fact("inputs", inputs);
  c.fact("results", results);
  return c;
}

Content lora_content(wan::LoraFile lora) {
  Content c;
  c.kind = "LoRA";
  c.fact("dialect", name_of(lora.dialect));
  c.fact("modules", lora.modules);
  c.fact("blocks", lora.blocks);
  c.fact("rank", Json(lora.ranks));
  c.fact("alpha", lora.alphas == 0 ? Json("not stored: alpha = rank") : Json(lora.alpha_values));
  c.fact("width", lora.dim);
  std::vector<std::string> fits;
  for (const wan::Config& preset : wan::presets()) {
    if (preset.dim == lora.dim && preset.layers >= lora.blocks) fits.push_back(preset.name);
  }
  c.fact("fits", Json(fits));
  c.problems = std::move(lora.problems);
  return c;
}

Content model_content(const wan::TensorMap& names, wan::Recognised model) {
  const wan::Config& m = model.config;
  Content c;
  c.kind = "Wan diffusion transformer";
  c.fact("model", m.name);
  if (!m.description.empty()) c.fact("description", m.description);
  c.fact("dialect", name_of(names.dialect()));
  if (!names.prefix().empty()) c.fact("prefix", names.prefix());
  c.fact("width", m.dim);
  c.fact("blocks", m.layers);
  c.fact("heads", m.heads);
  c.fact("feed-forward width", m.ffn_dim);
  c.fact("input channels", m.in_dim);
  c.fact("output channels", m.out_dim);
  c.problems = std::move(model.problems);
  return c;
}

Content text_model_content(const t5::TensorMap& names, const t5::Config& m) {
  Content c;
  c.kind = m.decoder_layers == 0 ? "T5 text encoder" : "T5 encoder-decoder";
  c.fact("model", m.name);
  if (!m.description.empty()) c.fact("description", m.description);
  c.fact("dialect", name_of(names.dialect()));
  c.fact("width", m.d_model);
  c.fact("encoder blocks", m.layers);
  if (m.decoder_layers > 0) c.fact("decoder blocks", m.decoder_layers);
  c.fact("heads", m.heads);
  c.fact("feed-forward width", m.d_ff);
  c.fact("vocabulary", m.vocabulary);
  return c;
}

Content vae_content(const WeightFiles& checkpoint, const wan_vae::Recognised& found) {
  const wan_vae::Config& m = found.config;
  const bool official = found.dialect == wan_vae::Dialect::official;
  Content c;
  c.kind = "Wan video autoencoder";
  c.fact("model", m.name);
  c.fact("dialect", official ? "official" : "diffusers");
  c.fact("encoder width", m.encoder_dim);
  c.fact("decoder width", m.decoder_dim);
  c.fact("latent channels", m.z_dim);
  c.fact("pixels per latent", fmt::format("{0} x {0}", m.pixels_per_latent()));
  for (const wan_vae::Network& net : {wan_vae::encoder(m), wan_vae::decoder(m)}) {
    for (const wan_vae::Stage& stage : net) {
      for (const wan_vae::Unit& unit : stage.units) {
        for (const wan_vae::UnitTensor& t : wan_vae::tensors_of(unit)) {
          const std::string& name = official ? t.name : t.other;
          const auto stored = checkpoint.find(name);
          if (!stored) {
            c.problems.push_back(fmt::format("{} is missing", name));
          } else if (stored->entry->shape.elements() != t.shape.elements()) {
            c.problems.push_back(
                fmt::format("{} is {}, expected {}", name, stored->entry->shape, t.shape));
          }
        }
      }
    }
  }
  return c;
}

// A one-file checkpoint: its parts are described one after another.
Content parts_content(const WeightFiles& checkpoint, const PartsInFile& parts) {
  Content all;
  std::vector<std::string> kinds;
  const auto add = [&](const char* part, Content c) {
    kinds.push_back(part);
    for (auto& [name, value] : c.facts) {
      all.fact(fmt::format("{} {}", part, name), std::move(value));
    }
    for (std::string& problem : c.problems) all.problems.push_back(std::move(problem));
  };
  const wan::TensorMap names(checkpoint);
  if (auto model = wan::recognise(checkpoint, names)) {
    add("transformer", model_content(names, std::move(*model)));
  } else {
    all.problems.push_back("model.diffusion_model.* is no Wan transformer");
  }
  if (parts.vae) {
    const WeightFiles file = open_part(checkpoint.path(), ModelPart::vae, DiskMode::buffered);
    if (const auto vae = wan_vae::recognise(file)) {
      add("VAE", vae_content(file, *vae));
    } else {
      all.problems.push_back("the tensors of the VAE are not those of a Wan VAE");
    }
  }
  if (parts.text_encoder) {
    const WeightFiles file =
        open_part(checkpoint.path(), ModelPart::text_encoder, DiskMode::buffered);
    const t5::TensorMap text(file);
    if (const auto model = t5::recognise(file, text)) {
      add("text encoder", text_model_content(text, *model));
    } else {
      all.problems.push_back("the tensors of the text encoder are not those of a T5 or UMT5");
    }
  }
  if (parts.tokenizer) kinds.push_back("tokenizer");
  all.kind = "one-file checkpoint: ";
  for (std::size_t i = 0; i < kinds.size(); ++i) all.kind += (i > 0 ? ", " : "") + kinds[i];
  return all;
}

Content content_of(const WeightFiles& checkpoint) {
  if (is_golden(checkpoint)) return golden_content(checkpoint.path());
  if (auto lora = wan::recognise_lora(checkpoint)) return lora_content(std::move(*lora));
  if (const PartsInFile parts = parts_in(checkpoint); parts.several()) {
    return parts_content(checkpoint, parts);
  }
  const wan::TensorMap names(checkpoint);
  if (auto model = wan::recognise(checkpoint, names)) {
    return model_content(names, std::move(*model));
  }
  const t5::TensorMap text(checkpoint);
  if (const auto model = t5::recognise(checkpoint, text)) {
    Content c = text_model_content(text, *model);
    if (parts_in(checkpoint).tokenizer) c.fact("tokenizer", "inside (spiece_model)");
    return c;
  }
  if (const auto vae = wan_vae::recognise(checkpoint)) return vae_content(checkpoint, *vae);
  return {};
}

// 14288491584 -> "14.29 B"
std::string short_count(std::uint64_t n) {
  const double x = static_cast<double>(n);
  if (n >= 1'000'000'000) return fmt::format("{:.4g} B", x / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.4g} M", x / 1e6);
  return fmt::format("{}", n);
}

std::string text_of(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>(), 400);
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& v : value) text += (text.empty() ? "" : ", ") + text_of(v);
  return text.empty() ? "none" : text;
}

// ballast inspect: what a file or folder holds, from its headers; and whether its values are
// numbers.
class Inspect : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option(
           "FILE", path_,
           "a safetensors, PyTorch or GGUF file, an index.json, a folder with one, the id of a "
           "model in the Hugging Face cache, or an image or video")
        ->required();
    app.add_flag("--json", json_, "print JSON, sizes in bytes");
    app.add_flag("--tensors", tensors_, "list every tensor and every problem");
    app.add_flag("--values", values_,
                 fmt::format("look for NaN and infinity in files above {} too", kReadUnasked));
  }
  void run() override;

 private:
  std::string parts_text() const;
  std::string file_text(const WeightFiles& checkpoint, const Totals& totals) const;
  std::string tensor_text(const WeightFiles& checkpoint) const;
  std::string content_text(const Content& content) const;
  std::string as_json(const WeightFiles& checkpoint, const Totals& totals,
                      const Content& content) const;

  std::string path_;
  bool json_ = false, tensors_ = false, values_ = false;
};

const RegisterCommand<Inspect> kInspect("inspect", "what a model, LoRA, image or video file is");

// A folder with the parts of a model: which they are.
std::string Inspect::parts_text() const {
  const infer::ModelFiles m = infer::find_model_files(path_);
  const std::pair<const char*, const std::string&> parts[] = {{"transformer", m.transformer},
                                                              {"high-noise expert", m.high_noise},
                                                              {"VAE", m.vae},
                                                              {"text encoder", m.text_encoder},
                                                              {"tokenizer", m.tokenizer}};
  Json j = {{"path", path_}, {"kind", "model folder"}, {"parts", Json::object()}};
  std::string text = fmt::format("{}\n  model folder\n\n", printable(path_, 4096));
  for (const auto& [name, path] : parts) {
    if (path.empty()) continue;
    j["parts"][name] = path;
    text += fmt::format("  {:<20} {}\n", name, printable(path, 4096));
  }
  for (const auto* choices : {&m.vae_choices, &m.text_encoder_choices}) {
    for (const std::string& path : *choices) {
      const char* name = choices == &m.vae_choices ? "VAE?" : "text encoder?";
      text += fmt::format("  {:<20} {}\n", name, printable(path, 4096));
    }
  }
  if (json_) return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return text + "\n`ballast inspect` describes a part when it is given its path\n";
}

void Inspect::run() {
  path_ = infer::model_path(path_);
  if (infer::holds_parts(path_)) return print(parts_text());
  if (is_media_file(path_)) return print(describe_media(path_, json_));
  const ForeignView view{.path = path_, .json = json_, .all_tensors = tensors_};
  if (const auto text = inspect_foreign(view)) return print(*text);
  const WeightFiles checkpoint = WeightFiles::open(path_, DiskMode::buffered);
  const Totals totals = totals_of(checkpoint);
  const bool reads_values = values_ || totals.all.bytes <= kReadUnasked.count;
  const auto content = [&] {
    Content c = while_doing("finding out what " + printable(path_) + " holds",
                            [&] { return content_of(checkpoint); });
    if (reads_values) {
      for (std::string& p : problems_of_values(checkpoint)) c.problems.push_back(std::move(p));
    }
    c.fact("values", reads_values ? "read" : "not read: --values looks for NaN and infinity");
    return c;
  };
  if (json_) return print(as_json(checkpoint, totals, content()));
  // In parts: a file whose tensors make no sense still shows what it is made of.
  print(file_text(checkpoint, totals));
  print(tensor_text(checkpoint));
  Content c = content();
  c.problems.insert(c.problems.begin(), checkpoint.warnings().begin(), checkpoint.warnings().end());
  print(content_text(c));
}

std::string Inspect::file_text(const WeightFiles& checkpoint, const Totals& totals) const {
  std::string text = fmt::format("{}\n  {}, {} {}, {} parameters, {}\n", printable(path_, 4096),
                                 container_of(checkpoint), checkpoint.files().size(),
                                 checkpoint.files().size() == 1 ? "file" : "files",
                                 short_count(totals.all.elements), Bytes{totals.all.bytes});
  if (checkpoint.config_path()) text += fmt::format("  config {}\n", *checkpoint.config_path());
  text += fmt::format("\n{:<12} {:>9} {:>20} {:>12}\n", "dtype", "tensors", "parameters", "size");
  const auto line = [&](std::string_view name, const DTypeTotal& t) {
    text +=
        fmt::format("{:<12} {:>9} {:>20} {:>12}\n", name, t.tensors, t.elements, Bytes{t.bytes});
  };
  for (const auto& [dtype, total] : totals.by_dtype) line(name_of(dtype), total);
  line("total", totals.all);

  const Metadata& metadata = checkpoint.files()[0].metadata();
  if (!metadata.empty()) text += "\nmetadata\n";
  std::size_t shown = 0;
  for (const auto& [key, value] : metadata) {
    if (++shown > kMetadataShown && !tensors_) continue;
    text += fmt::format("  {} = {}\n", printable(key, kMetadataBytes),
                        printable(value, kMetadataBytes));
  }
  if (shown > kMetadataShown && !tensors_) {
    text += fmt::format("  ... {} more\n", shown - kMetadataShown);
  }
  return text;
}

std::string Inspect::tensor_text(const WeightFiles& checkpoint) const {
  const auto all = checkpoint.tensors();
  const bool cut = !tensors_ && all.size() > kFirstTensors + kLastTensors + 1;
  std::string text = all.empty() ? "" : "\ntensors\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (cut && i == kFirstTensors) {
      text += fmt::format("  ... {} more (--tensors lists all)\n",
                          all.size() - kFirstTensors - kLastTensors);
      i = all.size() - kLastTensors;
    }
    const SafetensorsEntry& e = *all[i].entry;
    text += fmt::format("  {:<8} {:<24} {}\n", e.dtype, to_string(e.shape), printable(e.name));
  }
  return text;
}

std::string Inspect::content_text(const Content& content) const {
  std::string text = fmt::format("\ncontent\n  {:<20} {}\n", "kind", content.kind);
  for (const auto& [name, value] : content.facts) {
    text += fmt::format("  {:<20} {}\n", name, text_of(value));
  }
  if (content.problems.empty()) return text + "\nproblems: none\n";
  text += fmt::format("\nproblems ({})\n", content.problems.size());
  for (std::size_t i = 0; i < content.problems.size(); ++i) {
    if (i == kProblemsShown && !tensors_) {
      return text +
             fmt::format("  ... {} more (--tensors lists all)\n", content.problems.size() - i);
    }
    text += fmt::format("  {}\n", content.problems[i]);
  }
  return text;
}

std::string Inspect::as_json(const WeightFiles& checkpoint, const Totals& totals,
                             const Content& content) const {
  const auto total_json = [](const DTypeTotal& t) {
    return Json{{"tensors", t.tensors}, {"parameters", t.elements}, {"bytes", t.bytes}};
  };
  Json j = {{"path", path_}, {"container", container_of(checkpoint)}, {"kind", content.kind}};
  Json facts = Json::object();
  for (const auto& [name, value] : content.facts) facts[name] = value;
  j["content"] = std::move(facts);
  j["total"] = total_json(totals.all);
  j["dtypes"] = Json::object();
  for (const auto& [dtype, total] : totals.by_dtype) {
    j["dtypes"][std::string(name_of(dtype))] = total_json(total);
  }
  j["files"] = Json::array();
  for (const SafetensorsFile& f : checkpoint.files()) {
    j["files"].push_back({{"path", f.path()},
                          {"bytes", f.file().size()},
                          {"tensors", f.entries().size()},
                          {"metadata", Json(f.metadata())}});
  }
  j["config"] = checkpoint.config_path() ? Json(*checkpoint.config_path()) : Json(nullptr);
  j["warnings"] =
      Json(std::vector<std::string>(checkpoint.warnings().begin(), checkpoint.warnings().end()));
  j["problems"] = Json(content.problems);
  if (tensors_) {
    j["tensors"] = Json::array();
    for (const WeightTensor& t : checkpoint.tensors()) {
      const SafetensorsEntry& e = *t.entry;
      j["tensors"].push_back({{"name", std::string(e.name)},
                              {"dtype", name_of(e.dtype)},
                              {"shape", std::vector<std::int64_t>(e.shape.begin(), e.shape.end())},
                              {"file", t.file},
                              {"offset", e.offset},
                              {"bytes", e.bytes}});
    }
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace
}  // namespace ballast
