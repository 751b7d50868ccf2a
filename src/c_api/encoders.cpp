#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/guard.h"
#include "c_api/settings.h"
#include "core/to_size.h"
#include "data/clean_text.h"
#include "data/tokenizer.h"
#include "infer/model_folder.h"
#include "infer/text_encoder.h"
#include "infer/video_codec.h"
#include "nn/machine_options.h"
#include "plan/already_held.h"
#include "train/run/device_choice.h"

using namespace ballast::c_api;  // NOLINT(google-build-using-namespace): C functions stand outside

// One half at a time has its weights loaded: each is planned for the whole budget.
struct ballast_vae {
  std::string path;
  ballast::infer::VideoCodecOptions options;
  ballast::wan_vae::Config config;
  std::unique_ptr<ballast::infer::VideoEncoder> encoder = nullptr;
  std::unique_ptr<ballast::infer::VideoDecoder> decoder = nullptr;
};

struct ballast_text {
  ballast::infer::TextEncoder encoder;
  ballast::data::Tokenizer tokenizer;
  std::int64_t rows;
};

namespace ballast::c_api {
namespace {

Setting size_setting(std::optional<Bytes>& to, std::string_view key) {
  return {key, [&to, key](const Json& v) { to = size_of(v, key); }};
}

Setting threads_setting(MachineOptions& to) {
  return {"threads", [&to](const Json& v) {
            to.threads =
                static_cast<int>(std::clamp<std::int64_t>(integer_of(v, "threads"), 0, 4096));
          }};
}

Setting device_setting(MachineOptions& to) {
  return {"device", [&to](const Json& v) {
            if (const auto wrong = set_option(to.device, string_of(v, "device"))) {
              fail(ErrorCode::usage, fmt::format("device: {}", *wrong));
            }
          }};
}

infer::VideoCodecOptions codec_options(const Json& json) {
  MachineOptions machine;
  infer::VideoCodecOptions o;
  take_settings(json, "the VAE's settings",
                {size_setting(machine.gpu, "gpu"),
                 size_setting(machine.ram, "ram"),
                 threads_setting(machine),
                 device_setting(machine),
                 {"dtype",
                  [&](const Json& v) {
                    const std::string type = string_of(v, "dtype");
                    if (type != "f32" && type != "bf16") {
                      fail(ErrorCode::usage,
                           fmt::format("dtype: expected f32 or bf16, found {}", printable(type)));
                    }
                    o.dtype = type == "f32" ? DType::f32 : DType::bf16;
                  }},
                 {"clamp", [&](const Json& v) { o.clamp = bool_of(v, "clamp"); }}});
  const train::RunTarget target = train::this_machine(machine);
  o.device = target.backend.device;
  o.threads = machine.threads;
  o.budget = train::resolve_budget(target, machine);
  return o;
}

Bytes arenas_of(const infer::VideoCodec& codec) {
  const MemoryPlan* const plan = codec.memory();
  return plan == nullptr ? Bytes{} : plan->peak_of(Tier::device) + plan->peak_of(Tier::host);
}

template <class Half, class Other>
Half& half_of(const ballast_vae& vae, std::unique_ptr<Half>& half, std::unique_ptr<Other>& other) {
  other.reset();
  measure_already_held(half ? arenas_of(*half) : Bytes{});
  if (!half) half = std::make_unique<Half>(vae.path, vae.options);
  return *half;
}

void encode(ballast_vae& vae, const DLTensor& video, const DLTensor& latent) {
  const std::span<const float> pixels = floats_of(video, "video", 4);
  const std::int64_t frames = video.shape[0], height = video.shape[1], width = video.shape[2];
  const std::int64_t side = vae.config.pixels_per_latent();
  if (frames < 1 || frames % 4 != 1 || height < side || width < side || height % side != 0 ||
      width % side != 0 || video.shape[3] != 3) {
    fail(ErrorCode::input,
         fmt::format(
             "video has the shape [{}, {}, {}, {}], expected [4 n + 1 frames, height, width, "
             "3] with sides that are multiples of {}",
             frames, height, width, video.shape[3], side));
  }
  const std::span<float> to = floats_of(latent, "latent", 4);
  const std::int64_t expected[] = {vae.config.z_dim, 1 + (frames - 1) / 4, height / side,
                                   width / side};
  require_shape(latent, "latent", expected);
  const std::vector<float> encoded =
      half_of(vae, vae.encoder, vae.decoder)
          .encode(frames, height, width,
                  [&](std::int64_t first, std::int64_t count, std::span<float> chunk) {
                    const std::int64_t frame = height * width * 3;
                    std::ranges::copy(
                        pixels.subspan(to_size(first * frame), to_size(count * frame)),
                        chunk.begin());
                  });
  std::ranges::copy(encoded, to.begin());
}

void decode(ballast_vae& vae, const DLTensor& latent, const DLTensor& video) {
  const std::span<const float> from = floats_of(latent, "latent", 4);
  const std::int64_t frames = latent.shape[1], height = latent.shape[2], width = latent.shape[3];
  if (latent.shape[0] != vae.config.z_dim || frames < 1 || height < 1 || width < 1) {
    fail(ErrorCode::input,
         fmt::format("latent has the shape [{}, {}, {}, {}], expected [{}, frames, height, width]",
                     latent.shape[0], frames, height, width, vae.config.z_dim));
  }
  const std::span<float> to = floats_of(video, "video", 4);
  const std::int64_t side = vae.config.pixels_per_latent();
  const std::int64_t expected[] = {1 + 4 * (frames - 1), height * side, width * side, 3};
  require_shape(video, "video", expected);
  half_of(vae, vae.decoder, vae.encoder)
      .decode(from, frames, height, width, [&](const infer::DecodedFrames& f) {
        std::ranges::copy(f.pixels, to.begin() + f.first * f.height * f.width * 3);
      });
}

struct TextPaths {
  std::string encoder, tokenizer;
};

// A model's folder holds both; a file or folder of an encoder alone may have its tokenizer inside
// or beside it.
TextPaths text_paths(const std::string& named, const std::string& tokenizer) {
  TextPaths paths = {infer::model_path(named), tokenizer};
  if (infer::holds_parts(paths.encoder)) {
    const infer::ModelFiles parts = infer::find_model_files(paths.encoder);
    infer::require_one(parts.text_encoder_choices, "text encoder", "path of one");
    if (parts.text_encoder.empty()) {
      fail(ErrorCode::input, fmt::format("{} holds no text encoder", printable(named)));
    }
    paths.encoder = parts.text_encoder;
    if (tokenizer.empty()) paths.tokenizer = parts.tokenizer;
  }
  if (paths.tokenizer.empty()) paths.tokenizer = infer::stored_tokenizer(paths.encoder);
  if (paths.tokenizer.empty()) {
    const std::filesystem::path p(paths.encoder);
    paths.tokenizer =
        std::filesystem::is_directory(p) ? p.string() : p.parent_path().string() + "/.";
  }
  return paths;
}

}  // namespace
}  // namespace ballast::c_api

int ballast_vae_open(const char* path, const char* settings, ballast_vae** vae, char** err) {
  return guarded(err, [&] {
    require(path, "path");
    require(vae, "vae");
    ballast::infer::VideoCodecOptions options = codec_options(parse_settings(settings));
    std::string file = ballast::infer::model_path(path);
    if (ballast::infer::holds_parts(file)) {
      const ballast::infer::ModelFiles parts = ballast::infer::find_model_files(file);
      ballast::infer::require_one(parts.vae_choices, "VAE", "path of one");
      if (!parts.vae.empty()) file = parts.vae;
    }
    const ballast::wan_vae::Config config =
        ballast::infer::VideoDecoder(file, options).config();  // reads the header alone
    *vae = new ballast_vae{.path = file, .options = std::move(options), .config = config};
  });
}

int ballast_vae_info(ballast_vae* vae, char** json, char** err) {
  return guarded(err, [&] {
    require(vae, "vae");
    give(json, text_of({{"name", vae->config.name},
                        {"z_dim", vae->config.z_dim},
                        {"pixels_per_cell", vae->config.pixels_per_latent()},
                        {"frames_per_cell", 4}}));
  });
}

int ballast_vae_encode(ballast_vae* vae, const DLTensor* video, DLTensor* latent, char** err) {
  return guarded(err, [&] {
    require(vae, "vae");
    require(video, "video");
    require(latent, "latent");
    encode(*vae, *video, *latent);
  });
}

int ballast_vae_decode(ballast_vae* vae, const DLTensor* latent, DLTensor* video, char** err) {
  return guarded(err, [&] {
    require(vae, "vae");
    require(latent, "latent");
    require(video, "video");
    decode(*vae, *latent, *video);
  });
}

void ballast_vae_close(ballast_vae* vae) { delete vae; }

int ballast_text_open(const char* path, const char* settings, ballast_text** text, char** err) {
  return guarded(err, [&] {
    require(path, "path");
    require(text, "text");
    ballast::MachineOptions machine;
    std::string tokenizer;
    std::int64_t rows = 512;
    take_settings(parse_settings(settings), "the text encoder's settings",
                  {size_setting(machine.gpu, "gpu"),
                   size_setting(machine.ram, "ram"),
                   threads_setting(machine),
                   device_setting(machine),
                   {"tokenizer", [&](const Json& v) { tokenizer = string_of(v, "tokenizer"); }},
                   {"rows", [&](const Json& v) { rows = integer_of(v, "rows"); }}});
    if (rows < 1 || rows > 65536) {
      ballast::fail(ballast::ErrorCode::usage,
                    fmt::format("rows: expected 1 to 65,536, found {}", rows));
    }
    const TextPaths paths = text_paths(path, tokenizer);
    const ballast::train::RunTarget target = ballast::train::this_machine(machine);
    ballast::infer::TextEncoderOptions options;
    options.device = target.backend.device;
    options.threads = machine.threads;
    options.budget = ballast::train::resolve_budget(target, machine);
    *text = new ballast_text{.encoder = ballast::infer::TextEncoder(paths.encoder, options),
                             .tokenizer = ballast::data::Tokenizer::open(paths.tokenizer),
                             .rows = rows};
  });
}

int ballast_text_info(ballast_text* text, char** json, char** err) {
  return guarded(err, [&] {
    require(text, "text");
    give(json, text_of({{"width", text->encoder.config().d_model}, {"rows", text->rows}}));
  });
}

int ballast_text_states(ballast_text* text, const char* prompt, DLTensor* states, int64_t* count,
                        char** err) {
  return guarded(err, [&] {
    require(text, "text");
    require(prompt, "prompt");
    require(states, "states");
    const std::span<float> to = floats_of(*states, "states", 2);
    const std::int64_t expected[] = {text->rows, text->encoder.config().d_model};
    require_shape(*states, "states", expected);
    const std::vector<std::int32_t> ids =
        text->tokenizer.encode(ballast::data::clean_text(prompt), ballast::to_size(text->rows));
    ballast::measure_already_held();
    const std::vector<ballast::infer::TextStates> all = text->encoder.encode({&ids, 1});
    std::ranges::fill(std::ranges::copy(all[0].values, to.begin()).out, to.end(), 0.0f);
    if (count != nullptr) *count = all[0].tokens;
  });
}

void ballast_text_close(ballast_text* text) { delete text; }
