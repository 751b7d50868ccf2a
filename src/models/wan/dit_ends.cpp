// What stands before the first block and behind the last: embeddings, head and loss, and their
// backward passes.

#include "models/wan/dit_pass.h"
#include "ops/add.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/flow_loss.h"
#include "ops/gelu.h"
#include "ops/layer_norm.h"
#include "ops/modulation_table.h"
#include "ops/patchify.h"
#include "ops/silu.h"
#include "ops/unpatchify.h"

namespace ballast::wan {

// Time MLP (f32), text MLP and patch embedding.
void DitPass::embed(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const DType act = job_.precision.activation;
  const auto scope = pb.scope("embed");
  const auto p = group_buffers<EmbeddingParams<WeightBuffers>>(pb, 0);
  const auto linear = [](const LinearParams<WeightBuffers>& w) {
    return ops::LinearWeight{.weight = w.weight.data, .bias = w.bias.data, .scale = w.weight.scale};
  };
  // How many timesteps share a run is the policy's choice, and products of other heights may round
  // differently: each row is a product of its own.
  const auto by_row = [&](Buffer x, const ops::LinearWeight& w) {
    const std::int64_t rows = pb.shape(x)[0];
    const Buffer y = pb.temp("y", {rows, pb.shape(w.weight)[0]}, f32);
    for (std::int64_t r = 0; r < rows; ++r) {
      ops::linear_into(pb, pb.rows(x, r, 1), w, pb.rows(y, r, 1));
    }
    return y;
  };
  time_.pre = by_row(time_.sinusoid, linear(p.time0));  // [T, C]
  time_.hidden = ops::silu(pb, time_.pre, f32);
  time_.e = by_row(time_.hidden, linear(p.time2));  // [T, C]
  time_.e_silu = ops::silu(pb, time_.e, f32);
  time_.e0 = by_row(time_.e_silu, linear(p.projection));  // [T, 6C]
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    s.text_pre = ops::linear(pb, s.context_in, linear(p.text0), act);  // [S, C]
    s.context = ops::linear(pb, ops::gelu(pb, s.text_pre, act), linear(p.text2), act);
    s.tokens_in = pb.temp("tokens", {s.tokens, c.in_dim * 4}, act);
    const std::int64_t latent_columns = c.out_dim * 4;
    ops::patchify(pb, s.latent, pb.columns(s.tokens_in, 0, latent_columns), 0);
    if (s.conditioning) {
      ops::patchify(pb, s.conditioning,
                    pb.columns(s.tokens_in, latent_columns, c.conditioning() * 4), 0);
    }
    ops::LinearWeight patch = linear(p.patch);
    patch.weight = pb.reshape(patch.weight, {c.dim, c.in_dim * 4});
    s.x = ops::linear(pb, s.tokens_in, patch, job_.precision.residual);  // [L, C]
    if (!taps_) continue;
    const int sample = static_cast<int>(i);
    taps_->tap(pb, "mid.context", sample, s.context, 0);
    taps_->tap(pb, "mid.patch_tokens", sample, s.x, 0);
  }
  if (taps_) {
    taps_->tap(pb, "mid.sinusoid", -1, time_.sinusoid, 0);
    taps_->tap(pb, "mid.e", -1, time_.e, 0);
    taps_->tap(pb, "mid.e0", -1, time_.e0, 0);
  }
}

// y = (LN(x) (1 + scale) + shift) W^T + b in f32, put back into the latent's shape; then the loss
// and the gradient of x.
void DitPass::head_and_loss(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const auto scope = pb.scope("head");
  const int group = head_group(c);
  if (backward()) begin_gradients(pb, group);
  const auto p = group_buffers<HeadParams<WeightBuffers>>(pb, group);
  const auto g = backward() ? group_gradients<HeadParams<Buffer>>(group) : HeadParams<Buffer>();
  const AdaptedLinear head = linear_of(p.head, g.head);
  const Buffer m = ops::modulation_table(pb, p.modulation.data, time_.e, 2, true);  // [2, T, C]
  const auto row = [&](Buffer table, int k) {
    if (!table) return Buffer();
    return pb.reshape(pb.rows(table, k, 1), {io_.batch.timestep_rows, c.dim});
  };
  Buffer dm;
  if (full()) {
    dm = pb.temp("dmodulation", pb.shape(m), f32, Role::gradient);
    ops::fill(pb, dm, 0);
    time_.de = pb.temp("de", pb.shape(time_.e), f32, Role::gradient);
    time_.de0 = pb.temp("de0", pb.shape(time_.e0), f32, Role::gradient);
    ops::fill(pb, time_.de, 0);
    ops::fill(pb, time_.de0, 0);
  }
  // The mean over all elements of the step; with recorded noise the host's weight of a sample is
  // its share of that.
  std::int64_t cells = 0;
  for (const LatentSize& z : io_.batch.latents) cells += z.cells();
  Buffer loss = backward() ? loss_sum_ : Buffer();
  if (scores() && !loss) {
    loss = pb.temp("loss", {1}, DType::f64, Role::output);
    ops::fill(pb, loss, 0);
  }
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    const auto norm = [&](const TokenChunk& k) {
      return ops::NormTables{.mul = row(m, 1),
                             .add = row(m, 0),
                             .index = pb.rows(io_.samples[i].timestep_row, k.first, k.rows),
                             .one_plus = true};
    };
    s.output = pb.temp("output", pb.shape(s.latent), f32, Role::output);
    for (const TokenChunk& k : token_chunks(job_.policy, s.tokens)) {
      const Buffer z =
          ops::layer_norm(pb, pb.rows(s.x, k.first, k.rows), norm(k), c.eps, f32).y;  // [R, C]
      const Buffer y = ops::linear(pb, z, head.weight, f32);                          // [R, 4 out]
      if (taps_) taps_->tap(pb, "mid.head", static_cast<int>(i), y, k.first);
      ops::unpatchify(pb, y, s.output, k.first);
    }
    if (!scores()) continue;
    if (!s.target) s.target = upload(pb, "target", io_.samples[i].target, f32);
    const Buffer doutput = backward() ? pb.temp("doutput", pb.shape(s.output), f32) : Buffer();
    if (s.loss_weight) cells = io_.batch.latents[i].cells();
    // rho'(0 - target): the gradient is the host's alone.
    if (pulled_) ops::fill(pb, doutput, 0);
    ops::flow_loss(pb,
                   {.pred = pulled_ ? doutput : s.output,
                    .target = s.target,
                    .mask = s.mask,
                    .sample_weight = s.loss_weight,
                    .loss = loss,
                    .dpred = doutput},
                   {.rho = job_.loss, .weight = 1.0 / static_cast<double>(c.out_dim * cells)});
    if (!backward()) continue;
    s.dx = AppendedAdapter::temp(pb, "dx", pb.shape(s.x), job_.precision.residual,
                                 appended_.gradient_room());
    for (const TokenChunk& k : token_chunks(job_.policy, s.tokens)) {
      const Buffer x = pb.rows(s.x, k.first, k.rows);
      const ops::LayerNormOut z = ops::layer_norm(pb, x, norm(k), c.eps, f32);
      const Buffer dy = pb.temp("dy", {k.rows, 4 * c.out_dim}, f32);
      ops::unpatchify_backward(pb, doutput, dy, k.first);
      const Buffer dz = pb.temp("dz", pb.shape(x), f32);
      head.backward(pb, z.y, dy, dz, false);
      ops::layer_norm_backward(pb, x, z.stats, norm(k), dz, pb.rows(s.dx, k.first, k.rows), false,
                               {.dmul = row(dm, 1), .dadd = row(dm, 0)});
    }
    if (!full()) continue;
    s.dcontext = pb.temp("dcontext", pb.shape(s.context), f32, Role::gradient);
    ops::fill(pb, s.dcontext, 0);
  }
  if (scores()) ops::copy(pb, loss, loss_, Lane::download);
  if (full()) ops::modulation_table_backward(pb, dm, true, time_.de, g.modulation);
  if (backward()) end_gradients(pb, group);
}

void DitPass::embed_backward(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const DType act = job_.precision.activation;
  const auto scope = pb.scope("embed.backward");
  begin_gradients(pb, 0);
  const auto p = group_buffers<EmbeddingParams<WeightBuffers>>(pb, 0);
  const auto g = group_gradients<EmbeddingParams<Buffer>>(0);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const SampleState& s = samples_[i];
    const DitSampleIo& io = io_.samples[i];
    AdaptedLinear patch = linear_of(p.patch, g.patch);
    const Shape matrix = {c.dim, c.in_dim * 4};
    patch.weight.weight = pb.reshape(patch.weight.weight, matrix);
    patch.dweight = pb.reshape(patch.dweight, matrix);
    const Buffer dtokens = io.dlatent ? pb.temp("dtokens", pb.shape(s.tokens_in), f32) : Buffer();
    patch.backward(pb, s.tokens_in, s.dx, dtokens, false);
    if (io.dlatent) {
      const Buffer dlatent = pb.temp("dlatent", pb.shape(io.dlatent), f32, Role::output);
      ops::patchify_backward(pb, pb.columns(dtokens, 0, c.out_dim * 4), dlatent, 0);
      ops::copy(pb, dlatent, io.dlatent, Lane::download);
    }

    // ctx = W2 gelu(W0 states + b0) + b2
    Buffer dcontext = s.dcontext;
    if (act != f32) dcontext = ops::cast(pb, s.dcontext, act);
    const Buffer dhidden = pb.temp("dhidden", pb.shape(s.text_pre), act);  // [S, C]
    linear_of(p.text2, g.text2)
        .backward(pb, ops::gelu(pb, s.text_pre, act), dcontext, dhidden, false);
    ops::gelu_backward_into(pb, s.text_pre, dhidden, dhidden);
    const Buffer dstates =
        io.dcontext ? pb.temp("dstates", pb.shape(s.context_in), f32, Role::output) : Buffer();
    linear_of(p.text0, g.text0).backward(pb, s.context_in, dhidden, dstates, false);
    if (io.dcontext) ops::copy(pb, dstates, io.dcontext, Lane::download);
  }

  // e0 = W3 silu(e) + b3;  e = W2 silu(W0 s + b0) + b2. Weight gradients add up row by row: a row
  // is a sample's, and samples of one run and of several must add up to the same bits.
  const auto backward = [&](const LinearParams<WeightBuffers>& w, const LinearParams<Buffer>& grads,
                            Buffer x, Buffer dy, Buffer dx) {
    AdaptedLinear l = linear_of(w, grads);
    if (dx) ops::linear_dx_into(pb, dy, l.weight, dx, {.accumulate = false});
    for (std::int64_t t = 0; t < io_.batch.timestep_rows; ++t) {
      ops::linear_dw(pb, pb.rows(x, t, 1), pb.rows(dy, t, 1), l.dweight, l.dbias);
    }
  };
  const Buffer de = pb.temp("de", pb.shape(time_.e), f32);
  backward(p.projection, g.projection, time_.e_silu, time_.de0, de);
  ops::silu_backward_into(pb, time_.e, de, de);
  ops::add_into(pb, time_.de, de);
  const Buffer dpre = pb.temp("dpre", pb.shape(time_.pre), f32);
  backward(p.time2, g.time2, time_.hidden, de, dpre);
  ops::silu_backward_into(pb, time_.pre, dpre, dpre);
  backward(p.time0, g.time0, time_.sinusoid, dpre, {});
  end_gradients(pb, 0);
}

}  // namespace ballast::wan
