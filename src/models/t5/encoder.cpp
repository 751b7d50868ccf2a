#include "models/t5/encoder.h"

#include <algorithm>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/relative_bias.h"
#include "plan/bindings.h"

namespace ballast::t5 {

Buffer score_bias(ProgramBuilder& pb, const Config& config, Side side, Buffer table,
                  std::int64_t tokens) {
  return ops::relative_bias(
      pb, table,
      {.buckets = config.relative(side == Side::encoder), .queries = tokens, .keys = tokens});
}

RowsOfSamples rows_of_prompt(const ProgramBuilder& pb, const Config& config,
                             const Precision& precision, std::int64_t tokens, Buffer lengths) {
  RowsOfSamples rows = {.lengths = lengths, .whole_scores = true};
  // A CPU shares the heads of a call among its threads.
  if (pb.backend().device == Device::cuda) {
    rows.heads_at_once = heads_at_once(config, precision, tokens, tokens);
  }
  return rows;
}

Encoder::Encoder(ProgramSet& set, EncoderJob job, std::vector<WeightGroup> groups, Taps* taps)
    : job_(std::move(job)) {
  validate(job_.config);
  check(job_.config.decoder_layers == 0, "{} has a decoder", job_.config.name);
  check(static_cast<int>(groups.size()) == group_count(job_.config),
        "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  check(!job_.passes.empty(), "there is at least one pass");
  {
    ProgramBuilder load(set, "load");
    weights_.emplace(load, std::vector<std::vector<WeightGroup>>{std::move(groups)}, job_.policy,
                     job_.format);
    declare_io(load);
    weights_->load(load, 0);
  }
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    ProgramBuilder encode(set, passes_[p].program);
    if (job_.source) read_rows(encode, p);
    record(encode, passes_[p], taps);
  }
}

// The i-th prompts of all passes lie in the same memory, as large as the longest.
void Encoder::declare_io(ProgramBuilder& pb) {
  std::vector<std::int64_t> longest;
  for (const auto& lengths : job_.passes) {
    check(!lengths.empty(), "a pass has at least one prompt");
    longest.resize(std::max(longest.size(), lengths.size()), 0);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      check(lengths[i] > 0, "a prompt has {} tokens", lengths[i]);
      longest[i] = std::max(longest[i], lengths[i]);
    }
  }
  std::vector<PromptIo> slots;
  for (const std::int64_t tokens : longest) {
    const Shape shape = {tokens, job_.config.d_model};
    slots.push_back(
        {.rows = pb.persistent("rows", shape, job_.rows, Role::input, Tier::host),
         .states = pb.persistent("states", shape, DType::f32, Role::output, Tier::host)});
  }
  for (std::size_t p = 0; p < job_.passes.size(); ++p) {
    PassIo& io = passes_.emplace_back();
    io.program = p == 0 ? "encode" : fmt::format("encode.{}", p);
    for (std::size_t i = 0; i < job_.passes[p].size(); ++i) {
      const std::int64_t tokens = job_.passes[p][i];
      io.prompts.push_back({.rows = pb.rows(slots[i].rows, 0, tokens),
                            .states = pb.rows(slots[i].states, 0, tokens)});
    }
  }
}

void Encoder::read_rows(ProgramBuilder& pb, std::size_t pass) {
  const auto& prompts = passes_[pass].prompts;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    pb.emit("rows", {.writes = {prompts[p].rows}, .lane = Lane::host},
            [read = job_.source.read, pass, p, to = prompts[p].rows](const Bindings& b) {
              read(pass, p, b.out(to));
            });
  }
  if (pass + 1 == passes_.size()) return;
  pb.emit("expect_rows", {.lane = Lane::host, .cost = {.bytes = 0}},
          [expect = job_.source.expect, pass](const Bindings&) { expect(pass + 1); });
}

void Encoder::record(ProgramBuilder& pb, const PassIo& pass, Taps* taps) {
  WeightsInUse weights(job_.config, *weights_);
  weights.begin(pb);
  std::vector<Buffer> x;
  for (const PromptIo& p : pass.prompts) {
    x.push_back(pb.temp("x", pb.shape(p.rows), job_.precision.residual));
    // Not on the lane of the weights, which would wait for them.
    ops::copy(pb, p.rows, x.back(), Lane::compute);
  }
  const BlockLayers layers(job_.config, job_.policy, job_.precision);
  for (std::int64_t b = 0; b < job_.config.layers; ++b) {
    const auto scope = pb.scope(fmt::format("blocks.{}", b));
    const BlockInUse w = weights.block(pb, Side::encoder, b);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Buffer bias = score_bias(pb, job_.config, Side::encoder,
                                     weights.table(Side::encoder, b), pb.shape(x[i])[0]);
      if (taps && b == 0) taps->tap(pb, "mid.block0.bias", static_cast<int>(i), bias, 0);
      layers.self_attention(pb, w.self, x[i], bias, false, nullptr,
                            rows_of_prompt(pb, job_.config, job_.precision, pb.shape(x[i])[0]));
      layers.feed_forward(pb, w.ffn, x[i], nullptr);
      if (taps) taps->tap(pb, fmt::format("mid.block{}", b), static_cast<int>(i), x[i], 0);
    }
  }
  const auto scope = pb.scope("final");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Buffer states = layers.norm(pb, weights.final_norm(Side::encoder), x[i], DType::f32).u;
    ops::copy(pb, states, pass.prompts[i].states, Lane::download);
  }
  weights.end(pb);
}

}  // namespace ballast::t5
