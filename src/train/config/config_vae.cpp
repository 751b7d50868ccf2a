#include <fmt/format.h>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/toml_checks.h"

namespace ballast::train {
namespace {

enum class Init : std::uint8_t { file, random };

constexpr std::array<EnumName<Init>, 1> kInits = {{{"random", Init::random}}};
constexpr std::array<EnumName<wan_vae::Generation>, 2> kGenerations = {
    {{"2.1", wan_vae::Generation::wan21}, {"2.2", wan_vae::Generation::wan22}}};

// [model.config], beside init = 'random'.
wan_vae::Config network_of(const TomlTable& model) {
  const auto t = model.table("config");
  if (!t) model.fail_at("init", "a network from scratch needs its sizes in [model.config]");
  wan_vae::Config c;
  c.generation = word_from(*t, "type", kGenerations).value_or(wan_vae::Generation::wan21);
  (void)t->require_integer("dim");
  c.encoder_dim = *integer_from(*t, "dim", 1);
  c.decoder_dim = integer_from(*t, "decoder_dim", 1).value_or(c.encoder_dim);
  c.z_dim = integer_from(*t, "z_dim", 1).value_or(c.folded() ? 48 : 16);
  c.name = fmt::format("wan{}-vae of width {}", c.folded() ? "2.2" : "2.1", c.encoder_dim);
  t->finish();
  wan_vae::validate(c);
  if (!c.folded() && c.decoder_dim % 2 != 0) {
    t->fail_at(
        t->has("decoder_dim") ? "decoder_dim" : "dim",
        fmt::format("expected an even width, found {}: the decoder halves it", c.decoder_dim));
  }
  return c;
}

}  // namespace

void read_vae_model(const TomlTable& t, const PathFinder& find_path, TrainConfig& c) {
  VaeConfig& v = c.vae.emplace();
  std::string key = t.has("vae_path") ? "vae_path" : "ckpt_path";
  v.file = find_path.find(key, t.string(key, ""));
  if (const auto init = word_from(t, "init", kInits)) {
    if (!v.file.empty()) {
      t.fail_at("init", fmt::format("\"random\" and {} contradict each other", key));
    }
    v.network = network_of(t);
  } else if (v.file.empty()) {
    fail(ErrorCode::input,
         fmt::format("{} line {}: [model] has no VAE to train", t.path(), t.line()),
         {{"vae_path = 'FILE'", "fine-tunes it"},
          {"init = 'random' and a section [model.config]", "trains one from scratch"}});
  } else if (t.has("config")) {
    t.fail_at("config", "sizes are those of the file; they are of init = 'random'");
  }
  c.method = Method::full;
  (void)t.require_string("dtype");
  c.model.dtype = *word_from(t, "dtype", kDTypeNames);
  if (c.model.dtype != DType::f32 && c.model.dtype != DType::bf16) {
    t.fail_at("dtype", "a VAE computes in float32 or bfloat16");
  }
  c.model.transformer_dtype = DType::f32;  // masters
  read_fields(t, v);
  if (!v.train_encoder && v.file.empty()) {
    t.fail_at("train_encoder",
              "an encoder from scratch has to be trained: false goes with vae_path");
  }
  if (const auto on = t.boolean("vae_gradient_checkpointing")) {
    c.memory.checkpointing = *on ? Checkpointing::recompute : Checkpointing::off;
  }
  t.finish();
}

}  // namespace ballast::train
