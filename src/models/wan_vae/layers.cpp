#include "models/wan_vae/layers.h"

#include <array>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::wan_vae {
namespace {

constexpr std::array<std::int64_t, 4> kWidths = {1, 2, 4, 4};  // of encoder stages, times the first
constexpr int kStages = 4, kEncoderBlocks = 2, kDecoderBlocks = 3;

Stage single(Unit u) { return {.name = u.name, .units = {u}}; }

Stage middle(const std::string& side, std::int64_t width) {
  const auto unit = [&](UnitKind kind, int i, const char* other) {
    return Unit{kind,
                fmt::format("{}.middle.{}", side, i),
                fmt::format("{}.mid_block.{}", side, other),
                width,
                width,
                true};
  };
  return {.name = side + ".middle",
          .units = {unit(UnitKind::residual, 0, "resnets.0"),
                    unit(UnitKind::attention, 1, "attentions.0"),
                    unit(UnitKind::residual, 2, "resnets.1")}};
}

void add(std::vector<UnitTensor>& to, int slot, const std::string& name, const std::string& other,
         const Shape& shape, std::int64_t taps = 0) {
  to.push_back({slot, name, other, shape, taps});
}

void add_conv(std::vector<UnitTensor>& to, int slot, const std::string& name,
              const std::string& other, const Shape& weight) {
  std::int64_t taps = 1;
  for (int i = 2; i < weight.rank(); ++i) taps *= weight[i];
  add(to, slot, name + ".weight", other + ".weight", weight, taps);
  add(to, slot + 1, name + ".bias", other + ".bias", {weight[0]});
}

}  // namespace

std::vector<UnitTensor> tensors_of(const Unit& u) {
  using S = TensorSlots;
  std::vector<UnitTensor> t;
  const auto n = [&](const char* suffix) { return u.name + suffix; };
  const auto o = [&](const char* suffix) { return u.other + suffix; };
  const std::int64_t in = u.in, out = u.out;
  switch (u.kind) {
    case UnitKind::conv_in:
      add_conv(t, S::conv, u.name, u.other, {out, in, 3, 3, 3});
      break;
    case UnitKind::point:
      add_conv(t, S::conv, u.name, u.other, {out, in, 1, 1, 1});
      break;
    case UnitKind::residual:
      add(t, S::norm, n(".residual.0.gamma"), o(".norm1.gamma"), {in, 1, 1, 1});
      add_conv(t, S::conv, n(".residual.2"), o(".conv1"), {out, in, 3, 3, 3});
      add(t, S::norm2, n(".residual.3.gamma"), o(".norm2.gamma"), {out, 1, 1, 1});
      add_conv(t, S::conv2, n(".residual.6"), o(".conv2"), {out, out, 3, 3, 3});
      if (in != out)
        add_conv(t, S::shortcut, n(".shortcut"), o(".conv_shortcut"), {out, in, 1, 1, 1});
      break;
    case UnitKind::attention:
      add(t, S::norm, n(".norm.gamma"), o(".norm.gamma"), {in, 1, 1});
      add_conv(t, S::conv, n(".to_qkv"), o(".to_qkv"), {3 * in, in, 1, 1});
      add_conv(t, S::conv2, n(".proj"), o(".proj"), {in, in, 1, 1});
      break;
    case UnitKind::down_2d:
    case UnitKind::down_3d:
    case UnitKind::up_2d:
    case UnitKind::up_3d:
      add_conv(t, S::conv, n(".resample.1"), o(".resample.1"), {out, in, 3, 3});
      if (u.kind == UnitKind::down_3d) {
        add_conv(t, S::conv2, n(".time_conv"), o(".time_conv"), {in, in, 3, 1, 1});
      }
      if (u.kind == UnitKind::up_3d) {
        add_conv(t, S::conv2, n(".time_conv"), o(".time_conv"), {2 * in, in, 3, 1, 1});
      }
      break;
    case UnitKind::head:
      add(t, S::norm, n(".0.gamma"), u.other + ".norm_out.gamma", {in, 1, 1, 1});
      add_conv(t, S::conv, n(".2"), u.other + ".conv_out", {out, in, 3, 3, 3});
      break;
  }
  return t;
}

Network encoder(const Config& c) {
  const bool flat = !c.folded();  // Wan2.1 counts its units through, Wan2.2 by stage
  Network net;
  std::int64_t width = c.encoder_dim;
  net.push_back(single(
      {UnitKind::conv_in, "encoder.conv1", "encoder.conv_in", c.network_channels(), width, true}));
  int counted = 0;
  for (int s = 0; s < kStages; ++s) {
    const std::int64_t out = c.encoder_dim * kWidths[to_size(s)];
    Stage stage = {.name = fmt::format("encoder.downsamples.{}", s), .units = {}};
    stage.shortcut = stage.tapped = !flat;
    const auto unit = [&](UnitKind kind, int i, std::int64_t in, const std::string& other) {
      const int index = counted++;
      stage.units.push_back(flat ? Unit{kind, fmt::format("encoder.downsamples.{}", index),
                                        fmt::format("encoder.down_blocks.{}", index), in, out, true}
                                 : Unit{kind, fmt::format("{}.downsamples.{}", stage.name, i),
                                        fmt::format("encoder.down_blocks.{}.{}", s, other), in,
                                        out});
    };
    for (int b = 0; b < kEncoderBlocks; ++b) {
      unit(UnitKind::residual, b, b == 0 ? width : out, fmt::format("resnets.{}", b));
    }
    if (s + 1 < kStages) {
      unit(s == 0 ? UnitKind::down_2d : UnitKind::down_3d, kEncoderBlocks, out, "downsampler");
    }
    net.push_back(stage);
    width = out;
  }
  net.push_back(middle("encoder", width));
  net.push_back(single({UnitKind::head, "encoder.head", "encoder", width, 2 * c.z_dim, true}));
  net.push_back(single({UnitKind::point, "conv1", "quant_conv", 2 * c.z_dim, 2 * c.z_dim}));
  return net;
}

Network decoder(const Config& c) {
  const bool flat = !c.folded();
  Network net;
  std::int64_t width = c.decoder_dim * kWidths[kStages - 1];
  net.push_back(single({UnitKind::point, "conv2", "post_quant_conv", c.z_dim, c.z_dim}));
  net.push_back(
      single({UnitKind::conv_in, "decoder.conv1", "decoder.conv_in", c.z_dim, width, true}));
  net.push_back(middle("decoder", width));
  int counted = 0;
  for (int s = 0; s < kStages; ++s) {
    const std::int64_t out = c.decoder_dim * kWidths[to_size(kStages - 1 - s)];
    Stage stage = {.name = fmt::format("decoder.upsamples.{}", s), .units = {}};
    stage.tapped = !flat;
    stage.shortcut = !flat && s + 1 < kStages;
    const auto unit = [&](UnitKind kind, int i, std::int64_t in, std::int64_t to,
                          const std::string& other) {
      const int index = counted++;
      stage.units.push_back(Unit{kind,
                                 flat ? fmt::format("decoder.upsamples.{}", index)
                                      : fmt::format("{}.upsamples.{}", stage.name, i),
                                 fmt::format("decoder.up_blocks.{}.{}", s, other), in, to, flat});
    };
    for (int b = 0; b < kDecoderBlocks; ++b) {
      unit(UnitKind::residual, b, b == 0 ? width : out, out, fmt::format("resnets.{}", b));
    }
    width = out;
    if (s + 1 < kStages) {
      width = flat ? out / 2 : out;
      unit(s < 2 ? UnitKind::up_3d : UnitKind::up_2d, kDecoderBlocks, out, width,
           flat ? "upsamplers.0" : "upsampler");
    }
    net.push_back(stage);
  }
  net.push_back(
      single({UnitKind::head, "decoder.head", "decoder", width, c.network_channels(), true}));
  return net;
}

}  // namespace ballast::wan_vae
