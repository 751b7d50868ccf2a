#include "models/wan/recognise.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "core/error.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "memory/text_file.h"
#include "models/wan/params.h"

namespace ballast::wan {
namespace {

constexpr std::int64_t kHeadWidth = 128;

// A tensor that only a derivative has, and what that is.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kDerivatives = {{
    {"img_emb.proj.0.bias", "Wan2.1 image-to-video with CLIP cross-attention"},
    {"blocks.0.cross_attn.k_img.weight", "Wan2.1 image-to-video with CLIP cross-attention"},
    {"vace_patch_embedding.weight", "VACE"},
    {"control_adapter.conv.weight", "a camera-control model"},
    {"face_adapter.fuser_blocks.0.q_norm.weight", "Wan2.2 Animate"},
    {"casual_audio_encoder.weights", "Wan2.2 S2V"},
}};

std::int64_t count_blocks(const TensorMap& names) {
  std::set<std::int64_t> blocks;
  for (const WanTensor& t : names.tensors()) {
    constexpr std::string_view kPrefix = "blocks.";
    if (!t.name.starts_with(kPrefix)) continue;
    std::int64_t n = -1;
    std::from_chars(t.name.data() + kPrefix.size(), t.name.data() + t.name.size(), n);
    if (n >= 0) blocks.insert(n);
  }
  return static_cast<std::int64_t>(blocks.size());
}

void refuse_derivatives(const WeightFiles& checkpoint, const TensorMap& names) {
  for (const auto& [tensor, what] : kDerivatives) {
    if (!names.find(tensor)) continue;
    fail(ErrorCode::input, "{} is {} (it has {}), which Ballast does not run", checkpoint.path(),
         what, tensor);
  }
}

// The config.json of a folder says how many rows of text there are; tensors do not.
void take_text_length(const std::string& path, Config& c) {
  const std::string text = read_text_file(path, limits::kConfigBytes, "a config.json");
  JsonReader json({.text = text, .path = path, .rule = "config.json"});
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "text_len" && json.peek() == JsonReader::Kind::number) {
      c.text_len = json.i64();
    } else {
      json.skip();
    }
  }
  json.finish();
}

bool same_sizes(const Config& a, const Config& b) {
  return a.dim == b.dim && a.ffn_dim == b.ffn_dim && a.layers == b.layers && a.in_dim == b.in_dim &&
         a.out_dim == b.out_dim;
}

}  // namespace

std::optional<Recognised> recognise(const WeightFiles& checkpoint, const TensorMap& names) {
  const auto shape_of = [&](const char* name, int rank) -> std::optional<Shape> {
    const WanTensor* t = names.find(name);
    if (!t || t->source.tensor.entry->shape.rank() != rank) return std::nullopt;
    return t->source.tensor.entry->shape;
  };
  const auto modulation = shape_of("head.modulation", 3);
  const auto head = shape_of("head.head.weight", 2);
  const auto up = shape_of("blocks.0.ffn.0.weight", 2);
  const auto patch = shape_of("patch_embedding.weight", 5);
  if (!modulation || !head || !up || !patch) return std::nullopt;
  refuse_derivatives(checkpoint, names);

  Config c;
  c.name = "wan";
  c.dim = modulation->back();
  c.out_dim = (*head)[0] / 4;
  c.ffn_dim = (*up)[0];
  c.in_dim = (*patch)[1];
  c.layers = count_blocks(names);
  if (c.dim % kHeadWidth != 0) {
    fail(ErrorCode::input,
         "{}: dim {} is no multiple of {}, so the number of heads cannot be told from "
         "the tensors",
         checkpoint.path(), c.dim, kHeadWidth);
  }
  c.heads = c.dim / kHeadWidth;
  if (const auto text = shape_of("text_embedding.0.weight", 2)) c.text_dim = (*text)[1];
  if (const auto time = shape_of("time_embedding.0.weight", 2)) c.freq_dim = (*time)[1];
  if (checkpoint.config_path()) take_text_length(*checkpoint.config_path(), c);
  c.spatial_stride = c.out_dim == 48 ? 16 : 8;
  for (const Config& preset : presets()) {
    if (!same_sizes(c, preset)) continue;
    c.name = preset.name;
    c.description = preset.description;
    c.experts = preset.experts;
    break;
  }
  validate(c);

  Recognised result = {.config = c, .problems = {}};
  std::vector<std::string> expected;
  each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    expected.push_back(name);
    const WanTensor* t = names.find(name);
    if (t && t->source.tensor.entry->shape != shape) {
      result.problems.push_back(
          fmt::format("{} is {}, expected {}", name, t->source.tensor.entry->shape, shape));
    }
  });
  const TensorMap::Difference difference = names.compare(expected);
  for (const std::string& name : difference.missing) {
    result.problems.push_back(fmt::format("{} is missing", name));
  }
  for (const std::string& name : difference.unused) {
    result.problems.push_back(fmt::format("{} is not part of the model", printable(name)));
  }
  return result;
}

Config recognised_config(const WeightFiles& checkpoint, const TensorMap& names,
                         const std::string& path) {
  auto recognised = recognise(checkpoint, names);
  if (!recognised) {
    fail(ErrorCode::input, fmt::format("{} holds no Wan transformer", path),
         {{"ballast inspect " + path, "says what it is"}});
  }
  if (!recognised->problems.empty()) {
    fail(ErrorCode::input, fmt::format("{}: {}", path, recognised->problems.front()),
         {{"ballast inspect " + path, "lists all problems"}});
  }
  return std::move(recognised->config);
}

}  // namespace ballast::wan
