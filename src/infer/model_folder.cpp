#include "infer/model_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/path_kind.h"
#include "io/hub_cache.h"
#include "io/weight_file_parts.h"

namespace ballast::infer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEntries = 100'000;  // of a folder that is looked through

// Of a name that somebody gave. One that cannot be looked up, as a circle of links, is no absent
// file.
bool is_there_or_fails(const std::string& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error) fail_io(printable(path, 400), "look for it", error.value());
  return there;
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Weight files directly in a folder, sorted.
std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  std::size_t seen = 0;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (++seen > kMaxEntries) {
      fail(ErrorCode::input, "{}: more than {} entries", folder.string(), kMaxEntries);
    }
    const std::string name = lower(at->path().filename().string());
    const bool weights =
        name.ends_with(".safetensors") || name.ends_with(".pth") || name.ends_with(".gguf");
    if (weights && !name.starts_with('.')) files.push_back(at->path());
  }
  std::ranges::sort(files);
  return files;
}

std::string folder_or_nothing(const fs::path& p) { return is_folder(p) ? p.string() : ""; }

// Parts of a model that match: the only one, or several and nothing says which.
struct Found {
  std::string path;
  std::vector<std::string> choices = {};

  bool empty() const { return path.empty() && choices.empty(); }
};

Found only_one(const std::vector<fs::path>& files) {
  Found found;
  if (files.size() == 1) found.path = files[0].string();
  if (files.size() < 2) return found;
  for (const fs::path& f : files) found.choices.push_back(f.string());
  return found;
}

std::vector<fs::path> named(const std::vector<fs::path>& files, std::string_view part) {
  std::vector<fs::path> chosen;
  std::ranges::copy_if(files, std::back_inserter(chosen),
                       [&](const fs::path& f) { return has(lower(f.filename().string()), part); });
  return chosen;
}

// ComfyUI's folders of files, whose users make folders in them.
constexpr std::array kTransformerFolders = {"diffusion_models", "unet"};
constexpr const char* kOneFileFolder = "checkpoints";
constexpr int kMaxDepth = 3;

std::vector<fs::path> weight_files_below(const fs::path& folder, int depth = kMaxDepth) {
  std::vector<fs::path> files = weight_files(folder);
  if (depth == 0) return files;
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_folder(at->path())) folders.push_back(at->path());
  }
  std::ranges::sort(folders);
  for (const fs::path& f : folders) {
    for (fs::path& file : weight_files_below(f, depth - 1)) files.push_back(std::move(file));
  }
  return files;
}

bool is_comfy(const fs::path& folder) {
  return is_folder(folder / kOneFileFolder) ||
         std::ranges::any_of(kTransformerFolders,
                             [&](const char* name) { return is_folder(folder / name); });
}

// ComfyUI's own folder has its models below.
fs::path with_models(const fs::path& folder) {
  return !is_comfy(folder) && is_comfy(folder / "models") ? folder / "models" : folder;
}

// The same file name for the other expert: low and high change places.
std::string partner_of(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const auto& [from, to] : {std::pair{"low", "high"},
                                 {"high", "low"},
                                 {"LOW", "HIGH"},
                                 {"HIGH", "LOW"},
                                 {"Low", "High"},
                                 {"High", "Low"}}) {
    const std::size_t at = name.find(from);
    if (at == std::string::npos) continue;
    std::string other = name;
    other.replace(at, std::string_view(from).size(), to);
    if (path_exists(file.parent_path() / other)) return (file.parent_path() / other).string();
  }
  return "";
}

void take_pair(ModelFiles& m, const fs::path& file) {
  m.transformer = file.string();
  const std::string other = partner_of(file);
  if (other.empty()) return;
  m.high_noise = other;
  if (has(lower(file.filename().string()), "high")) std::swap(m.transformer, m.high_noise);
}

// "\n  a.safetensors\n  b.safetensors"
std::string listed(const std::vector<std::string>& paths) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(paths.size(), kShown); ++i) {
    text += "\n  " + printable(paths[i], 400);
  }
  if (paths.size() > kShown) text += fmt::format("\n  and {} more", paths.size() - kShown);
  return text;
}

// One transformer or two experts among these files.
void take_comfy(ModelFiles& m, const fs::path& folder, const std::vector<fs::path>& files) {
  std::vector<fs::path> all, wan;
  for (const fs::path& f : files) {
    const std::string name = lower(f.filename().string());
    if (has(name, "vae") || has(name, "t5") || has(name, "lora") || has(name, "clip")) continue;
    all.push_back(f);
    if (has(name, "wan")) wan.push_back(f);
  }
  if (wan.empty()) wan = all;
  if (wan.empty()) return;
  // Of two experts one stands for both.
  std::vector<std::string> models;
  for (const fs::path& f : wan) {
    ModelFiles pair;
    take_pair(pair, f);
    if (std::ranges::find(models, pair.transformer) == models.end()) {
      models.push_back(pair.transformer);
    }
  }
  if (models.size() == 1) return take_pair(m, models[0]);
  fail(ErrorCode::input,
       fmt::format("{} holds several transformers:{}", printable(folder.string(), 400),
                   listed(models)),
       {{"--model FILE, or ckpt_path = 'FILE' in a training file",
         "chooses one; its other expert is found beside it"}});
}

void take_experts(ModelFiles& m, const fs::path& folder) {
  m.transformer = folder_or_nothing(folder / "low_noise_model");
  m.high_noise = folder_or_nothing(folder / "high_noise_model");
  if (!m.transformer.empty()) return;
  if (!m.high_noise.empty()) return std::swap(m.transformer, m.high_noise);
  m.transformer = folder_or_nothing(folder / "transformer_2");
  m.high_noise = folder_or_nothing(folder / "transformer");
  if (m.transformer.empty()) std::swap(m.transformer, m.high_noise);
  if (!m.transformer.empty()) return;
  std::vector<fs::path> comfy;
  for (const char* name : kTransformerFolders) {
    std::ranges::move(weight_files_below(folder / name), std::back_inserter(comfy));
  }
  take_comfy(m, folder, comfy);
  // One-file checkpoints of other models are there as well: only those of Wan count.
  if (m.transformer.empty()) {
    take_comfy(m, folder, named(weight_files_below(folder / kOneFileFolder), "wan"));
  }
  if (!m.transformer.empty()) return;
  // A folder of shards, or of one file.
  const std::vector<fs::path> files = weight_files(folder);
  const bool shards = std::ranges::any_of(files, [](const fs::path& f) {
    return f.filename().string().starts_with("diffusion_pytorch_model");
  });
  if (shards) {
    m.transformer = folder.string();
  } else {
    take_comfy(m, folder, files);
  }
}

// A folder of that name that is diffusers' part, or ComfyUI's with a fitting file.
Found part_in(const fs::path& folder, std::string_view file_part) {
  if (!is_folder(folder)) return {};
  if (path_exists(folder / "config.json")) return {folder.string()};
  const std::vector<fs::path> all = weight_files_below(folder), fitting = named(all, file_part);
  if (!fitting.empty()) return only_one(fitting);
  return all.size() == 1 ? only_one(all) : Found();
}

template <class... Parts>
Found first_of(Parts&&... parts) {
  Found found;
  ((found = found.empty() ? Found(parts) : found), ...);
  return found;
}

std::string tokenizer_in(const fs::path& folder) {
  for (const char* name : {"google/umt5-xxl", "tokenizer", "umt5-xxl"}) {
    const fs::path f = folder / name;
    if (path_exists(f / "spiece.model") || path_exists(f / "tokenizer.json")) return f.string();
  }
  return path_exists(folder / "spiece.model") || path_exists(folder / "tokenizer.json")
             ? folder.string()
             : "";
}

// Whether a VAE calls itself that of Wan2.2: wan2.2_vae, Wan2_2_VAE_bf16, vae2.2.
bool is_second_vae(const fs::path& file) {
  std::string name = lower(file.filename().string());
  std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
  return has(name, "wan22") || has(name, "vae22");
}

// Of several the one that goes with the transformer: TI2V-5B has Wan2.2's, all others have
// Wan2.1's.
Found vae_among(const std::vector<fs::path>& files, std::string_view part,
                const std::string& transformer) {
  const bool second = has(lower(model_name_of(transformer)), "5b");
  const std::vector<fs::path> all = named(files, part);
  std::vector<fs::path> fitting;
  std::ranges::copy_if(all, std::back_inserter(fitting),
                       [&](const fs::path& f) { return is_second_vae(f) == second; });
  return only_one(fitting.empty() ? all : fitting);
}

void take_others(ModelFiles& m, const fs::path& folder) {
  std::vector<fs::path> here = weight_files(folder);
  // The transformer's file is no other part, whatever its name says.
  for (const std::string& taken : {m.transformer, m.high_noise}) {
    if (!taken.empty()) std::erase(here, fs::absolute(taken));
    std::erase(here, fs::path(taken));
  }
  if (m.vae.empty() && m.vae_choices.empty()) {
    Found vae = first_of(vae_among(here, "vae", m.transformer),
                         path_exists(folder / "vae" / "config.json")
                             ? Found()
                             : vae_among(weight_files_below(folder / "vae"), "wan", m.transformer),
                         part_in(folder / "vae", "wan"));
    m.vae = std::move(vae.path);
    m.vae_choices = std::move(vae.choices);
  }
  if (m.text_encoder.empty() && m.text_encoder_choices.empty()) {
    Found text =
        first_of(only_one(named(here, "t5")), part_in(folder / "text_encoder", "t5"),
                 part_in(folder / "text_encoders", "umt5"), part_in(folder / "clip", "umt5"));
    m.text_encoder = std::move(text.path);
    m.text_encoder_choices = std::move(text.choices);
  }
  for (const fs::path& at :
       {folder, folder / "text_encoder", folder / "text_encoders", folder / "clip"}) {
    if (m.tokenizer.empty()) m.tokenizer = tokenizer_in(at);
  }
}

// What a one-file checkpoint holds beside its transformer.
void take_own_parts(ModelFiles& m) {
  const PartsInFile parts = parts_in_file(m.transformer);
  if (!parts.several()) return;
  if (parts.vae) m.vae = m.transformer;
  if (parts.text_encoder) m.text_encoder = m.transformer;
  if (parts.tokenizer) m.tokenizer = m.transformer;
}

// The parts around a file: beside it; of a file of a ComfyUI folder beside that folder.
void take_neighbours(ModelFiles& m, const fs::path& file) {
  fs::path folder = fs::absolute(file).parent_path();
  take_others(m, folder);
  for (int up = 0; up <= kMaxDepth && folder.has_filename(); ++up, folder = folder.parent_path()) {
    const std::string name = folder.filename().string();
    if (name != kTransformerFolders[0] && name != kTransformerFolders[1] && name != kOneFileFolder)
      continue;
    return take_others(m, folder.parent_path());
  }
}

}  // namespace

std::string model_path(const std::string& named) {
  const ModelPath found = resolve_model_path(named);
  if (!found.note.empty()) log::info("{}", found.note);
  return found.path;
}

std::string model_snapshot(const std::string& path) {
  const std::string found = model_path(path);
  if (is_there_or_fails(found)) return found;
  std::vector<Advice> advice = download_advice(path);
  advice.push_back({"name a folder of this machine", "nothing is downloaded"});
  fail(ErrorCode::io, fmt::format("{}: there is no such file or folder", printable(path)),
       std::move(advice));
}

std::string stored_tokenizer(const std::string& text_encoder) {
  return parts_in_file(text_encoder).tokenizer ? text_encoder : "";
}

bool holds_parts(const std::string& path) {
  constexpr std::array kPartFolders = {"low_noise_model", "high_noise_model", "transformer",
                                       "transformer_2"};
  const fs::path folder(path);
  return is_comfy(with_models(folder)) || std::ranges::any_of(kPartFolders, [&](const char* name) {
           return is_folder(folder / name);
         });
}

void require_one(const std::vector<std::string>& choices, std::string_view what,
                 std::string_view flag) {
  if (choices.empty()) return;
  fail(ErrorCode::input, fmt::format("several files could be the {}:{}", what, listed(choices)),
       {{std::string(flag), "chooses one"}});
}

bool is_comfy_folder(const std::string& path) { return is_comfy(with_models(path)); }

ModelFiles find_other_parts(const std::string& path, const std::string& transformer) {
  ModelFiles m;
  m.transformer = transformer;
  take_own_parts(m);
  if (is_folder(path)) {
    take_others(m, with_models(path));
  } else {
    take_neighbours(m, path);
  }
  if (m.tokenizer.empty() && !m.text_encoder.empty()) {
    m.tokenizer = stored_tokenizer(m.text_encoder);
  }
  return m;
}

ModelFiles find_model_files(const std::string& path) {
  const std::string found = model_path(path);
  if (!is_there_or_fails(found)) {
    fail(ErrorCode::input, fmt::format("{}: there is no such file or folder", printable(path)),
         download_advice(path));
  }
  ModelFiles m;
  if (!is_folder(found)) {
    take_pair(m, found);
    take_own_parts(m);
    take_neighbours(m, found);
  } else {
    const fs::path folder = with_models(found);
    take_experts(m, folder);
    if (m.transformer.empty()) {
      fail(ErrorCode::input,
           fmt::format("{} holds no transformer that is known by its name: expected "
                       "low_noise_model/ and high_noise_model/, transformer/, diffusion_models/ or "
                       "diffusion_pytorch_model*.safetensors",
                       folder.string()),
           {{"--model FILE", "names the file itself"}});
    }
    take_own_parts(m);
    take_others(m, folder);
  }
  if (m.tokenizer.empty() && !m.text_encoder.empty()) {
    m.tokenizer = stored_tokenizer(m.text_encoder);
  }
  return m;
}

const char* const kNegativePrompt =
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，"
    "整体发灰，最差质量，低质量，JPEG压缩残留，丑陋的，残缺的，多余的手指，"
    "画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走";

GenerationDefaults generation_defaults(const wan::Config& model, int experts) {
  if (model.spatial_stride == 16) {
    return {.steps = 50,
            .frames = 121,
            .width = 1280,
            .height = 704,
            .shift = 5,
            .low_guidance = 5,
            .high_guidance = 5,
            .boundary = 0,
            .fps = 24};
  }
  const bool small = model.dim < 3072;
  GenerationDefaults d = {.steps = 50,
                          .frames = 81,
                          .width = small ? 832 : 1280,
                          .height = small ? 480 : 720,
                          .shift = 5,
                          .low_guidance = 5,
                          .high_guidance = 5,
                          .boundary = 0,
                          .fps = 16};
  if (model.conditioning() > 0) {
    d.steps = 40, d.low_guidance = d.high_guidance = 3.5, d.boundary = 0.9;
  } else if (experts > 1) {
    d.steps = 40, d.shift = 12, d.low_guidance = 3, d.high_guidance = 4, d.boundary = 0.875;
  }
  return d;
}

}  // namespace ballast::infer
