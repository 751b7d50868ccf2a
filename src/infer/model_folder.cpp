#include "infer/model_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "core/error.h"

namespace ballast::infer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEntries = 100'000;  // of a folder that is looked through

bool is_there(const fs::path& p) {
  std::error_code error;
  return fs::exists(p, error);
}

bool is_folder(const fs::path& p) {
  std::error_code error;
  return fs::is_directory(p, error);
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
    if (++seen > kMostEntries) {
      fail(ErrorCode::input,
           fmt::format("{}: more than {} entries", folder.string(), kMostEntries));
    }
    const std::string name = lower(at->path().filename().string());
    const bool weights =
        name.ends_with(".safetensors") || name.ends_with(".pth") || name.ends_with(".gguf");
    if (weights && !name.starts_with('.')) files.push_back(at->path());
  }
  std::ranges::sort(files);
  return files;
}

std::string first_named(const std::vector<fs::path>& files, std::string_view part) {
  for (const fs::path& f : files) {
    if (has(lower(f.filename().string()), part)) return f.string();
  }
  return "";
}

std::string folder_or_nothing(const fs::path& p) { return is_folder(p) ? p.string() : ""; }

// The snapshot of a Hugging Face cache: the one that refs/main names, else the only one.
fs::path snapshot_of(const fs::path& folder) {
  const fs::path snapshots = folder / "snapshots";
  if (!is_folder(snapshots)) return folder;
  std::string revision;
  std::ifstream(folder / "refs" / "main") >> revision;
  const bool plain = !revision.empty() && revision.size() <= 64 &&
                     std::ranges::all_of(revision, [](unsigned char c) { return std::isalnum(c); });
  if (plain && is_folder(snapshots / revision)) return snapshots / revision;
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator at(snapshots, error), end; !error && at != end; at.increment(error)) {
    if (is_folder(at->path()) && all.size() < 2) all.push_back(at->path());
  }
  if (all.size() == 1) return all[0];
  fail(ErrorCode::input,
       fmt::format("{} holds {} snapshots, and refs/main names none", folder.string(),
                   all.empty() ? "no" : "several"),
       {{snapshots.string() + "/REVISION", "names one of them"}});
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
    if (is_there(file.parent_path() / other)) return (file.parent_path() / other).string();
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

// One transformer or two experts among the files of a ComfyUI folder.
void take_comfy(ModelFiles& m, const fs::path& folder) {
  std::vector<fs::path> all, wan;
  for (const fs::path& f : weight_files(folder)) {
    const std::string name = lower(f.filename().string());
    if (has(name, "vae") || has(name, "t5") || has(name, "lora") || has(name, "clip")) continue;
    all.push_back(f);
    if (has(name, "wan")) wan.push_back(f);
  }
  if (wan.empty()) wan = all;
  if (wan.empty()) return;
  take_pair(m, wan[0]);
  for (const fs::path& f : wan) {
    if (f == m.transformer || f == m.high_noise) continue;
    fail(ErrorCode::input,
         fmt::format("{} holds several transformers: {} and {}", folder.string(),
                     wan[0].filename().string(), f.filename().string()),
         {{"--model " + f.string(), "takes one of them, with its other expert"}});
  }
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
  for (const char* name : {"diffusion_models", "unet"}) {
    if (m.transformer.empty()) take_comfy(m, folder / name);
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
    take_comfy(m, folder);
  }
}

// A folder of the given name that is diffusers' part, or ComfyUI's with one fitting file.
std::string part_in(const fs::path& folder, std::string_view file_part) {
  if (!is_folder(folder)) return "";
  if (is_there(folder / "config.json")) return folder.string();
  const std::string named = first_named(weight_files(folder), file_part);
  if (!named.empty()) return named;
  const std::vector<fs::path> all = weight_files(folder);
  return all.size() == 1 ? all[0].string() : "";
}

template <class... Texts>
std::string first_of(Texts&&... texts) {
  std::string found;
  ((found = found.empty() ? std::string(texts) : found), ...);
  return found;
}

std::string tokenizer_in(const fs::path& folder) {
  for (const char* name : {"google/umt5-xxl", "tokenizer", "umt5-xxl"}) {
    const fs::path f = folder / name;
    if (is_there(f / "spiece.model") || is_there(f / "tokenizer.json")) return f.string();
  }
  return is_there(folder / "spiece.model") || is_there(folder / "tokenizer.json") ? folder.string()
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
std::string vae_named(const std::vector<fs::path>& files, std::string_view part,
                      const std::string& transformer) {
  const bool second = has(lower(fs::path(transformer).filename().string()), "5b");
  for (const fs::path& f : files) {
    if (has(lower(f.filename().string()), part) && is_second_vae(f) == second) return f.string();
  }
  return first_named(files, part);
}

void take_others(ModelFiles& m, const fs::path& folder) {
  const std::vector<fs::path> here = weight_files(folder);
  m.vae = first_of(vae_named(here, "vae", m.transformer),
                   is_there(folder / "vae" / "config.json")
                       ? ""
                       : vae_named(weight_files(folder / "vae"), "wan", m.transformer),
                   part_in(folder / "vae", "wan"));
  m.text_encoder =
      first_of(first_named(here, "t5"), part_in(folder / "text_encoder", "t5"),
               part_in(folder / "text_encoders", "umt5"), part_in(folder / "clip", "umt5"));
  m.tokenizer = first_of(tokenizer_in(folder), tokenizer_in(folder / "text_encoder"),
                         tokenizer_in(folder / "text_encoders"), tokenizer_in(folder / "clip"));
}

}  // namespace

std::string model_snapshot(const std::string& path) {
  if (!is_there(path)) {
    fail(ErrorCode::io, fmt::format("{}: there is no such file or folder", printable(path)),
         {{"name a folder of this machine", "nothing is downloaded"}});
  }
  return snapshot_of(path).string();
}

ModelFiles find_model_files(const std::string& path) {
  if (!is_there(path)) {
    fail(ErrorCode::input, fmt::format("{}: there is no such file or folder", printable(path)));
  }
  ModelFiles m;
  if (!is_folder(path)) {
    take_pair(m, path);
    const fs::path parent = fs::absolute(path).parent_path();
    take_others(m, parent);
    // A file of a ComfyUI folder has the other parts beside its folder.
    const std::string name = parent.filename().string();
    if (name == "diffusion_models" || name == "unet") take_others(m, parent.parent_path());
    return m;
  }
  const fs::path folder = snapshot_of(path);
  take_experts(m, folder);
  if (m.transformer.empty()) {
    fail(ErrorCode::input,
         fmt::format("{} holds no transformer that is known by its name: expected "
                     "low_noise_model/ and high_noise_model/, transformer/, diffusion_models/ or "
                     "diffusion_pytorch_model*.safetensors",
                     folder.string()),
         {{"--model FILE", "names the file itself"}});
  }
  take_others(m, folder);
  // The only file there is the transformer's, whatever else its name says.
  for (std::string* part : {&m.vae, &m.text_encoder}) {
    if (*part == m.transformer || *part == m.high_noise) part->clear();
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
