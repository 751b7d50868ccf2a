#include "models/student/pass.h"

#include <optional>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/add.h"
#include "ops/conv3d/conv3d.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/flow_loss.h"
#include "ops/linear/linear.h"
#include "ops/silu.h"

namespace ballast::student {
namespace {

constexpr DType f32 = DType::f32;
constexpr ops::ConvGeometry kConv = {.kernel = {1, 3, 3}, .pad = {0, 1, 1}};
constexpr std::int64_t kTaps = 9;

Buffer upload(ProgramBuilder& pb, const char* name, Buffer from) {
  const Buffer to = pb.temp(name, pb.shape(from), f32, Role::input);
  ops::copy(pb, from, to, Lane::upload);
  return to;
}

// A convolution's weights [out, in, 3, 3] as its product reads them.
Buffer packed(ProgramBuilder& pb, Buffer weight) {
  const Shape s = pb.shape(weight);
  const Buffer rows = pb.temp("rows", {s[0], kConv.row(s[1])}, f32, Role::weights);
  ops::pack_conv_weight(pb, weight, rows, kTaps, Lane::compute);
  return rows;
}

// Sums of one convolution's gradient over the samples.
struct ConvGradient {
  ConvGradient(ProgramBuilder& pb, Buffer weight)
      : like(weight),
        rows(pb.temp("drows", {pb.shape(weight)[0], kConv.row(pb.shape(weight)[1])}, f32,
                     Role::gradient)) {
    ops::fill(pb, rows, 0);
  }
  void add(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dbias) const {
    ops::conv3d_dw(pb, x, dy, rows, dbias, {.geometry = kConv, .frames = 1});
  }
  void finish(ProgramBuilder& pb, Buffer gradient) const;

  Buffer like, rows;
};

}  // namespace

Pass::Pass(const Parts& parts, std::span<const SampleIo> samples, bool trains)
    : job_(parts.job),
      config_(parts.job.config),
      parts_(parts),
      io_(samples),
      trains_(trains),
      layer_(parts.job) {
  groups_.resize(to_size(group_count(config_)));
  for (const Parameter& p : parts.parameters) {
    Group& g = groups_[to_size(p.group)];
    g.values.push_back(p.value);
    if (p.gradient) g.persistent.push_back(p.gradient);
  }
  samples_.resize(io_.size());
  for (SampleState& s : samples_) s.saved.resize(to_size(config_.depth));
}

Buffer Pass::image(ProgramBuilder& pb, Buffer rows) const {
  return pb.reshape(rows, {1, config_.grid(), config_.grid(), pb.shape(rows).back()});
}

EndParams<Buffer> Pass::ends(bool gradients) const {
  const std::vector<Buffer>& from = gradients ? groups_[0].device : groups_[0].values;
  EndParams<Buffer> p;
  std::size_t i = 0;
  EndParams<Buffer>::each(p, config_.projects(),
                          [&](const std::string&, Buffer& b) { b = from[i++]; });
  return p;
}

BlockParams<Buffer> Pass::block(std::int64_t b, bool gradients) const {
  const Group& g = groups_[to_size(1 + b)];
  const std::vector<Buffer>& from = gradients ? g.device : g.values;
  BlockParams<Buffer> p;
  std::size_t i = 0;
  BlockParams<Buffer>::each(p, "", [&](const std::string&, Buffer& t) { t = from[i++]; });
  return p;
}

// With gradients that wait in host memory a temporary takes their place while backward adds to it.
void Pass::begin_gradients(ProgramBuilder& pb, int group) {
  Group& g = groups_[to_size(group)];
  for (const Buffer persistent : g.persistent) {
    if (pb.tier(persistent) == Tier::device) {
      g.device.push_back(persistent);
      continue;
    }
    g.device.push_back(pb.temp("grad", pb.shape(persistent), f32, Role::gradient));
    ops::copy(pb, persistent, g.device.back(), Lane::upload);
  }
}

void Pass::end_gradients(ProgramBuilder& pb, int group) {
  const Group& g = groups_[to_size(group)];
  for (std::size_t i = 0; i < g.persistent.size(); ++i) {
    if (g.device[i] != g.persistent[i]) ops::copy(pb, g.device[i], g.persistent[i], Lane::download);
  }
}

void Pass::record(ProgramBuilder& pb) {
  embed(pb);
  for (std::int64_t b = 0; b < config_.depth; ++b) {
    const auto scope = pb.scope(fmt::format("student.blocks.{}", b));
    const BlockParams<Buffer> w = block(b, false);
    for (SampleState& s : samples_) {
      s.x = layer_.forward(pb, w, s.x, s.shift, ones_, trains_ ? &s.saved[to_size(b)] : nullptr);
    }
  }
  if (trains_) begin_gradients(pb, 0);
  head(pb);
  if (!trains_) return;
  for (std::int64_t b = config_.depth; b-- > 0;) {
    const auto scope = pb.scope(fmt::format("student.blocks.{}.backward", b));
    begin_gradients(pb, static_cast<int>(1 + b));
    const BlockParams<Buffer> w = block(b, false), g = block(b, true);
    for (SampleState& s : samples_) {
      layer_.backward(pb, w, g, s.saved[to_size(b)], s.dx, s.shift, ones_, s.dshift);
    }
    end_gradients(pb, static_cast<int>(1 + b));
  }
  embed_backward(pb);
  end_gradients(pb, 0);
}

// x = conv_in(latent);  shift = Wt text + bt + W2 silu(W0 time + b0) + b2.
void Pass::embed(ProgramBuilder& pb) {
  const auto scope = pb.scope("student.embed");
  const EndParams<Buffer> w = ends(false);
  const Shape rows = {config_.tokens(), config_.hidden_size};
  conv_in_rows_ = packed(pb, w.conv_in.weight);
  conv_out_rows_ = packed(pb, w.conv_out.weight);
  ones_ = pb.temp("ones", rows, job_.precision.activation);
  ops::fill(pb, ones_, 1);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    s.latent = upload(pb, "latent", io_[i].latent);
    s.time = upload(pb, "time", io_[i].time);
    s.text = upload(pb, "text", io_[i].text);
    s.time_pre = ops::linear(pb, s.time, linear_of(w.time0), f32);  // [1, 4C]
    s.time_hidden = ops::silu(pb, s.time_pre, f32);
    s.shift = ops::linear(pb, s.text, linear_of(w.text), f32);  // [1, C]
    ops::linear_into(pb, s.time_hidden, linear_of(w.time2), s.shift, {.accumulate = true});
    s.x = pb.temp("x", rows, job_.precision.residual);
    ops::conv3d_into(pb, image(pb, s.latent), {}, {conv_in_rows_, w.conv_in.bias, {}},
                     image(pb, s.x), {.geometry = kConv, .frames = 1});
  }
}

namespace {

void ConvGradient::finish(ProgramBuilder& pb, Buffer gradient) const {
  const Buffer sum = pb.temp("dconv", pb.shape(like), f32, Role::gradient);
  ops::unpack_conv_weight(pb, rows, sum, kTaps);
  const Shape flat = {pb.shape(like).elements()};
  ops::add_into(pb, pb.reshape(sum, flat), pb.reshape(gradient, flat));
}

}  // namespace

// y = conv_out(x), then the projection to the teacher's channels; the mean squared difference from
// the target and the gradient of x.
void Pass::head(ProgramBuilder& pb) {
  const auto scope = pb.scope("student.head");
  const EndParams<Buffer> w = ends(false);
  const EndParams<Buffer> g = trains_ ? ends(true) : EndParams<Buffer>();
  const Shape own = {config_.tokens(), config_.num_channels};
  const Shape matrix = {config_.teacher_channels, config_.num_channels};
  const auto projection = [&] {
    return ops::LinearWeight{pb.reshape(w.projection.weight, matrix), w.projection.bias, {}};
  };
  std::optional<ConvGradient> dconv;
  if (trains_) dconv.emplace(pb, w.conv_out.weight);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    s.y = pb.temp("y", own, f32);
    ops::conv3d_into(pb, image(pb, s.x), {}, {conv_out_rows_, w.conv_out.bias, {}}, image(pb, s.y),
                     {.geometry = kConv, .frames = 1});
    const Buffer output = config_.projects() ? ops::linear(pb, s.y, projection(), f32) : s.y;
    if (!trains_) {
      ops::copy(pb, output, io_[i].output, Lane::download);
      if (config_.projects()) ops::copy(pb, s.y, io_[i].own, Lane::download);
      continue;
    }
    const Buffer doutput = pb.temp("doutput", pb.shape(output), f32);
    const auto values =
        static_cast<double>(pb.shape(output).elements() * job_.batch * job_.runs_per_step);
    ops::flow_loss(pb,
                   {.pred = output,
                    .target = upload(pb, "target", io_[i].target),
                    .loss = parts_.loss_sum,
                    .dpred = doutput},
                   {.rho = {}, .weight = 1.0 / values});
    Buffer dy = doutput;
    if (config_.projects()) {
      ops::linear_dw(pb, s.y, doutput, pb.reshape(g.projection.weight, matrix), g.projection.bias);
      dy = ops::linear_dx(pb, doutput, projection(), f32);  // [L, N]
    }
    dconv->add(pb, image(pb, s.x), image(pb, dy), g.conv_out.bias);
    s.dx = pb.temp("dx", pb.shape(s.x), job_.precision.residual);
    const Buffer transposed =
        ops::transpose_conv_weight(pb, conv_out_rows_, config_.hidden_size, kTaps);
    ops::conv3d_into(pb, image(pb, dy), {}, {transposed, {}, {}}, image(pb, s.dx),
                     {.geometry = kConv.transposed(), .frames = 1});
    s.dshift = pb.temp("dshift", pb.shape(s.shift), f32, Role::gradient);
    ops::fill(pb, s.dshift, 0);
  }
  if (!trains_) return;
  dconv->finish(pb, g.conv_out.weight);
  ops::copy(pb, parts_.loss_sum, parts_.loss, Lane::download);
}

void Pass::embed_backward(ProgramBuilder& pb) {
  const auto scope = pb.scope("student.embed.backward");
  const EndParams<Buffer> w = ends(false), g = ends(true);
  const ConvGradient dconv(pb, w.conv_in.weight);
  for (const SampleState& s : samples_) {
    dconv.add(pb, image(pb, s.latent), image(pb, s.dx), g.conv_in.bias);
    ops::linear_dw(pb, s.text, s.dshift, g.text.weight, g.text.bias);
    ops::linear_dw(pb, s.time_hidden, s.dshift, g.time2.weight, g.time2.bias);
    const Buffer dpre = ops::linear_dx(pb, s.dshift, linear_of(w.time2), f32);  // [1, 4C]
    ops::silu_backward_into(pb, s.time_pre, dpre, dpre);
    ops::linear_dw(pb, s.time, dpre, g.time0.weight, g.time0.bias);
  }
  dconv.finish(pb, g.conv_in.weight);
}

}  // namespace ballast::student
