#include "app/commands/cache_inputs.h"

#include <algorithm>

#include "core/error.h"
#include "core/path_kind.h"
#include "infer/model_folder.h"
#include "infer/text_encoder.h"
#include "io/weight_file_parts.h"
#include "models/wan/recognise.h"
#include "models/wan_vae/latent_statistics.h"
#include "models/wan_vae/weights.h"
#include "train/run/model_choice.h"
#include "train/run/model_parts.h"
#include "train/run/prepared_run.h"
#include "train/run/published_model.h"

namespace ballast {
namespace {

bool is_there(const std::string& path) { return !path.empty() && path_exists(path); }

// The transformer, where the configuration names one that is there.
std::optional<wan::Config> find_model(const train::TrainConfig& c) {
  if (!is_there(c.model.checkpoint) && !is_there(c.model.transformer)) return std::nullopt;
  const train::ModelDecision decision = train::resolve_model(c);
  const auto* ambiguous = std::get_if<train::AmbiguousModel>(&decision);
  // Experts have one shape: either says what samples are like.
  const train::ModelChoice& choice =
      ambiguous != nullptr ? ambiguous->low : std::get<train::ModelChoice>(decision);
  const WeightFiles file = WeightFiles::open(choice.transformer);
  const wan::Config config = recognised_config(file, wan::TensorMap(file), choice.transformer);
  require_task(c.model, config, choice.transformer);
  return config;
}

bool is_released(const wan_vae::Config& vae) {
  return std::ranges::any_of(wan_vae::presets(),
                             [&](const wan_vae::Config& c) { return c.name == vae.name; });
}

// Of the model that goes with a VAE. Rows of text are those of UMT5-XXL where the VAE is a released
// one; nothing but the text encoder says what goes with another.
void use_vae(bool image_to_video, CacheInputs& in) {
  const std::string& path = in.vae;
  const WeightFiles file = open_part(path, ModelPart::vae);
  const auto vae = wan_vae::recognise(file);
  if (!vae) {
    fail(ErrorCode::input, fmt::format("{} holds no VAE of Wan", path),
         {{"ballast inspect " + path, "says what it is"}});
  }
  data::ModelNeeds& n = in.search.request.needs;
  n.latent_channels = vae->config.z_dim;
  n.spatial_stride = vae->config.pixels_per_latent();
  n.pixel_multiple = 2 * n.spatial_stride;
  n.fps = n.spatial_stride == 16 ? 24 : 16;
  n.pair_statistics = {wan_vae::kWan22LatentMean, wan_vae::kWan22LatentStd};
  if (image_to_video) n.conditioning_channels = n.latent_channels + 4;
  in.search.request.cache_name =
      n.spatial_stride == 16 ? "wan2.2_5b" : (image_to_video ? "wan2.2_i2v" : "wan");
  in.model = vae->config.name;
  if (!in.text_encoder.empty() && !is_released(vae->config)) {
    n.text_dim = infer::TextEncoder(in.text_encoder).config().d_model;
  }
}

bool uses_empty_caption(const train::TrainConfig& c) {
  return c.uncond_fraction > 0 || c.dmd2 || c.student;
}

// What `train` encodes of a dataset.
data::EncodingWork missing_of(const data::EncodingSearch& search, const train::TrainConfig& c) {
  if (is_folder(search.request.path)) return {};
  data::EncodingWork work = data::find_encoding_work(search);
  const bool all_empty =
      std::ranges::all_of(work.texts, [](const data::TextWork& t) { return t.caption.empty(); });
  if (all_empty && !uses_empty_caption(c) && !search.regenerate) {
    std::erase_if(work.texts, [](const data::TextWork& t) { return t.name == "empty_caption"; });
  }
  return work;
}

[[noreturn]] void fail_missing(std::string_view what, std::int64_t count, std::string_view items,
                               const train::TrainConfig& c, std::string_view key,
                               std::string_view flag,
                               const std::vector<std::string>& choices = {}) {
  const std::string setting = c.dialect == train::Dialect::diffusion_pipe
                                  ? fmt::format("[model] {} = 'FILE'", key)
                                  : fmt::format("--{} FILE", flag);
  infer::require_one(choices, what, setting);
  fail(ErrorCode::input,
       fmt::format(
           "{} {} are to be encoded and there is no {}{}", count, items, what,
           c.model.checkpoint.empty() ? std::string() : fmt::format(" in {}", c.model.checkpoint)),
       {{setting, "says where it is"}});
}

}  // namespace

std::int64_t CacheInputs::texts() const {
  std::int64_t n = 0;
  for (const data::EncodingWork& w : work) n += std::ssize(w.texts);
  return n;
}

std::int64_t CacheInputs::media() const {
  std::int64_t n = 0;
  for (const data::EncodingWork& w : work) n += std::ssize(w.media);
  return n;
}

CacheInputs find_cache_inputs(const train::TrainConfig& c, CacheUse use) {
  CacheInputs in;
  const infer::ModelFiles parts = train::parts_of(c);
  in.vae = parts.vae;
  in.text_encoder = parts.text_encoder;
  in.tokenizer = parts.tokenizer;
  data::DatasetRequest& r = in.search.request;
  if (const auto model = find_model(c)) {
    r.needs = train::needs_of(c.model, *model);
    r.cache_name = train::cache_name_of(c.model, *model);
    in.model = model->name;
  } else if (!in.vae.empty()) {
    use_vae(c.caching.image_to_video, in);
  } else if (c.dialect == train::Dialect::flow_matching) {
    in.model = "captions";  // need nothing of a model but the length of its text
  } else if (c.dialect == train::Dialect::musubi && !in.text_encoder.empty()) {
    // wan_cache_text_encoder_outputs.py: captions alone, whatever their rows will be used for.
    in.model = "captions";
    r.needs.text_dim = infer::TextEncoder(in.text_encoder).config().d_model;
  } else {
    train::require_downloaded(c.model);
    const bool pipe_file = c.dialect == train::Dialect::diffusion_pipe;
    fail(
        ErrorCode::input,
        c.model.checkpoint.empty()
            ? std::string("neither a transformer nor a VAE is given: their files say how large "
                          "cached samples are")
            : fmt::format("the transformer {} does not exist, and no VAE is given: their files say "
                          "how large cached samples are",
                          printable(c.model.checkpoint)),
        {{pipe_file ? "[model] vae_path = 'FILE'" : "--vae FILE", "names the VAE"}});
  }
  train::use_vae_statistics(in.vae, r);
  r.path = c.dataset.config;
  r.named = c.dataset.named;
  r.clip_mode = c.video_clip_mode;
  r.allow_many_resolutions = c.allow_many_resolutions;
  r.trust_cache = c.trust_cache;
  in.search.regenerate = c.regenerate_cache;
  const bool pipe = c.dialect == train::Dialect::diffusion_pipe;
  const bool flow = c.dialect == train::Dialect::flow_matching;
  in.store = c.caching.store.value_or(pipe ? c.model.dtype : flow ? DType::f16 : DType::bf16);

  const bool all_parts = !in.vae.empty() && !in.text_encoder.empty() && !in.tokenizer.empty();
  if (use == CacheUse::train) {
    in.search.musubi = all_parts ? data::MusubiMedia::missing_only : data::MusubiMedia::none;
  }
  const auto find = [&](const data::EncodingSearch& search) {
    return use == CacheUse::train ? missing_of(search, c) : data::find_encoding_work(search);
  };
  in.work.push_back(find(in.search));
  for (const train::DatasetRef& eval : c.eval_datasets) {
    data::EncodingSearch search = in.search;
    search.request.path = eval.config;
    search.request.named = eval.named;
    in.work.push_back(while_doing(fmt::format("opening the evaluation dataset \"{}\"", eval.name),
                                  [&] { return find(search); }));
  }
  // The other trainers' tools encode captions or media, whichever they have a file for.
  if (in.texts() > 0 && in.text_encoder.empty() && (pipe || in.vae.empty())) {
    fail_missing("text encoder", in.texts(), "captions", c, "llm_path", flow ? "checkpoint" : "t5",
                 parts.text_encoder_choices);
  }
  if (in.media() > 0 && in.vae.empty() && (pipe || in.text_encoder.empty())) {
    fail_missing("VAE", in.media(), "media", c, "vae_path", flow ? "vae_checkpoint" : "vae",
                 parts.vae_choices);
  }
  if (in.texts() > 0 && !in.text_encoder.empty() && in.tokenizer.empty()) {
    fail_missing("tokenizer", in.texts(), "captions", c, "tokenizer_path",
                 flow ? "tokenizer_path" : "tokenizer");
  }
  return in;
}

}  // namespace ballast
