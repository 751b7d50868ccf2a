#include "train/run/model_choice.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "infer/model_folder.h"
#include "io/hub_cache.h"
#include "io/toml_table.h"
#include "io/weight_files.h"
#include "models/wan/names.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

struct ExpertFolders {
  std::string low, high;  // "": not there
};

ExpertFolders experts_of(const std::string& checkpoint) {
  const auto in = [&](const char* name) {
    const fs::path path = fs::path(checkpoint) / name;
    return is_folder(path) ? path.string() : std::string();
  };
  const ExpertFolders official = {in("low_noise_model"), in("high_noise_model")};
  if (!official.low.empty() || !official.high.empty()) return official;
  // diffusers begins with the expert that sampling begins with.
  const ExpertFolders diffusers = {in("transformer_2"), in("transformer")};
  if (!diffusers.low.empty()) return diffusers;
  if (!infer::is_comfy_folder(checkpoint)) return {};
  const infer::ModelFiles comfy = infer::find_model_files(checkpoint);
  return {comfy.transformer, comfy.high_noise};
}

// A folder with one transformer may keep it in diffusers' sub-folder.
std::string single_of(const std::string& checkpoint) {
  const fs::path inner = fs::path(checkpoint) / "transformer";
  return is_folder(inner) && !path_exists(fs::path(checkpoint) / "config.json") ? inner.string()
                                                                                : checkpoint;
}

// 1.3: beside the shards; for a single file in ckpt_path, or in its low-noise folder.
std::string config_of(const std::string& transformer, const std::string& checkpoint) {
  const fs::path candidates[] = {
      is_folder(transformer) ? fs::path(transformer) / "config.json" : fs::path(),
      fs::path(checkpoint) / "config.json",
      fs::path(checkpoint) / "low_noise_model" / "config.json",
  };
  for (const fs::path& path : candidates) {
    if (!path.empty() && path_exists(path)) return path.string();
  }
  return "";
}

// Whether the transformer takes conditioning channels beside the latent.
bool is_i2v(const std::string& transformer, const std::string& config_json) {
  if (!config_json.empty()) {
    const TomlFile file = TomlFile::read(config_json);
    const TomlTable root = file.root();
    if (const auto type = root.string("model_type")) return *type == "i2v";
    const auto in = root.integer("in_dim"), out = root.integer("out_dim");
    if (in && out) return *in > *out;
  }
  const WeightFiles checkpoint = WeightFiles::open(transformer);
  const wan::TensorMap names(checkpoint);
  const wan::WanTensor* patch = names.find("patch_embedding.weight");
  const wan::WanTensor* head = names.find("head.head.weight");
  if (patch == nullptr || head == nullptr) return false;
  const Shape& in = patch->source.tensor.entry->shape;
  const Shape& out = head->source.tensor.entry->shape;
  return in.rank() == 5 && out.rank() == 2 && in[1] > out[0] / 4;
}

double boundary_of(const TrainConfig& c, const std::string& transformer,
                   const std::string& config_json) {
  if (c.model.boundary > 0) return c.model.boundary;
  return is_i2v(transformer, config_json) ? kBoundaryI2v : kBoundaryT2v;
}

void require_path(const std::string& path, std::string_view what) {
  if (path_exists(path)) return;
  std::vector<Advice> advice = download_advice(path);
  advice.push_back(
      {"give the path of the checkpoint", "relative paths start at the current folder"});
  fail(ErrorCode::input, fmt::format("{}: {} is not there", what, printable(path, 300)),
       std::move(advice));
}

// The range of timesteps that belongs to an expert, as lines of a configuration.
std::string lines_for(const ModelChoice& choice, bool high) {
  return high ? fmt::format("transformer_path = '{}'  # and min_t = {}, max_t = 1.0",
                            choice.transformer, choice.boundary)
              : fmt::format("transformer_path = '{}'  # and min_t = 0.0, max_t = {}",
                            choice.transformer, choice.boundary);
}

// A transformer that is named outright. An expert that trains on all timesteps is worth a word.
ModelChoice named_one(const TrainConfig& c, const std::string& path) {
  require_path(path, "the transformer");
  ModelChoice choice;
  choice.transformer = path;
  choice.config_json = config_of(path, c.model.checkpoint);
  const std::string name = fs::path(path).filename().string();
  const bool low = name.find("low_noise") != std::string::npos;
  const bool high = name.find("high_noise") != std::string::npos;
  if (low == high) return choice;
  choice.boundary = boundary_of(c, path, choice.config_json);
  if (c.timesteps.min_t == 0 && c.timesteps.max_t == 1) {
    choice.explanation = fmt::format(
        "{} is used {} t = {} when sampling; without min_t and max_t it is trained on all t", name,
        low ? "below" : "above", choice.boundary);
  }
  return choice;
}

ModelChoice both_of(const TrainConfig& c, const std::string& low, const std::string& high) {
  require_path(low, "the low-noise expert");
  require_path(high, "the high-noise expert");
  ModelChoice choice;
  choice.transformer = low;
  choice.high_noise_transformer = high;
  choice.config_json = config_of(low, c.model.checkpoint);
  choice.experts = Experts::both;
  choice.boundary = boundary_of(c, low, choice.config_json);
  return choice;
}

ModelDecision one_of_two(const TrainConfig& c, const ExpertFolders& folders) {
  const auto choose = [&](const std::string& path, double boundary, std::string why) {
    ModelChoice choice;
    choice.transformer = path;
    choice.config_json = config_of(path, c.model.checkpoint);
    choice.boundary = boundary;
    choice.explanation = std::move(why);
    return choice;
  };
  const double boundary = boundary_of(c, folders.low, config_of(folders.low, c.model.checkpoint));
  const double from = c.timesteps.min_t, to = c.timesteps.max_t;
  if (to <= boundary) {
    return choose(folders.low, boundary,
                  fmt::format("t up to {} lies below the boundary {}: the low-noise expert, {}", to,
                              boundary, folders.low));
  }
  if (from >= boundary) {
    return choose(folders.high, boundary,
                  fmt::format("t from {} lies above the boundary {}: the high-noise expert, {}",
                              from, boundary, folders.high));
  }
  AmbiguousModel both = {choose(folders.low, boundary, ""), choose(folders.high, boundary, ""), "",
                         ""};
  both.low_line = lines_for(both.low, false);
  both.high_line = lines_for(both.high, true);
  return both;
}

}  // namespace

ModelDecision resolve_model(const TrainConfig& c) {
  const ModelConfig& m = c.model;
  if (!m.high_noise_transformer.empty()) {
    return both_of(c, m.transformer.empty() ? m.checkpoint : m.transformer,
                   m.high_noise_transformer);
  }
  if (!m.transformer.empty()) {
    if (m.experts == Experts::both) {
      fail(ErrorCode::input, "experts = \"both\" and transformer_path contradict each other",
           {{"remove transformer_path", "both experts of ckpt_path are trained"}});
    }
    return named_one(c, m.transformer);
  }
  require_path(m.checkpoint, "the checkpoint");
  const ExpertFolders folders = experts_of(m.checkpoint);
  if (m.experts == Experts::both) {
    if (folders.low.empty() || folders.high.empty()) {
      fail(ErrorCode::input, "experts = \"both\": {} has no low_noise_model and high_noise_model",
           m.checkpoint);
    }
    return both_of(c, folders.low, folders.high);
  }
  if (!folders.low.empty() && !folders.high.empty()) return one_of_two(c, folders);
  if (!folders.low.empty()) return named_one(c, folders.low);
  if (!folders.high.empty()) return named_one(c, folders.high);
  return named_one(c, single_of(m.checkpoint));
}

ModelChoice require_model(const TrainConfig& c) {
  ModelDecision decision = resolve_model(c);
  if (auto* choice = std::get_if<ModelChoice>(&decision)) return std::move(*choice);
  const AmbiguousModel& both = std::get<AmbiguousModel>(decision);
  fail(ErrorCode::input,
       fmt::format("{}: {} holds two experts, and nothing says which one is to be trained. Write "
                   "one of these lines into [model]:\n  {}\n  {}",
                   c.source.empty() ? "the command line" : c.source, c.model.checkpoint,
                   both.low_line, both.high_line),
       {{"experts = \"both\"",
         "at the top of the file: both are trained, each on its side of the "
         "boundary, and two LoRA files are written"}});
}

void require_task(const ModelConfig& named, const wan::Config& model, const std::string& path) {
  if (named.task.empty()) return;
  const bool wanted = named.task_takes_image, found = model.conditioning() > 0;
  const bool with_first_frame = model.spatial_stride == 16;  // TI2V-5B; no task of 14B
  if (wanted == found && !with_first_frame) return;
  const auto kind = [](bool image) { return image ? "image-to-video" : "text-to-video"; };
  // Beside the latent an image-to-video model takes the image's, and a mask of 4 channels.
  const std::int64_t expected = wanted ? 2 * model.out_dim + 4 : model.out_dim;
  if (with_first_frame) {
    fail(ErrorCode::input,
         fmt::format("{}: expected {} model of 14B, but {} is TI2V-5B (latents of {} channels)",
                     named.task, wanted ? "an image-to-video" : "a text-to-video", path,
                     model.out_dim),
         {{"leave out --task", "the file itself says what it is"}});
  }
  fail(ErrorCode::input,
       fmt::format("{}: expected {} {} model, with {} input channels, but {} is a {} model, with "
                   "{} (patch_embedding.weight)",
                   named.task, wanted ? "an" : "a", kind(wanted), expected, path, kind(found),
                   model.in_dim),
       {{fmt::format("--dit FILE with the {} model", kind(wanted)), "trains what --task names"},
        {wanted ? "--task t2v-A14B" : "--task i2v-A14B", "trains the file that was given"}});
}

void apply(const ModelChoice& choice, TrainConfig& c) {
  c.model.transformer = choice.transformer;
  c.model.high_noise_transformer = choice.high_noise_transformer;
  c.model.experts = choice.experts;
  c.model.boundary = choice.boundary;
  if (!choice.explanation.empty()) c.notes.push_back(choice.explanation);
}

}  // namespace ballast::train
