#include "models/t5/weights_in_use.h"

#include "core/error.h"
#include "ops/copy.h"

namespace ballast::t5 {
namespace {

// A vector as norms read it: 8-bit files may have 8-bit gains.
Buffer readable(ProgramBuilder& pb, Buffer vector) {
  return size_of(pb.dtype(vector)) == 1 ? ops::cast(pb, vector, DType::f32) : vector;
}

AdaptedLinear linear_of(const WeightBuffers& w, Buffer gradient) {
  AdaptedLinear l;
  l.weight = {.weight = w.data, .bias = {}, .scale = w.scale};
  l.dweight = gradient;
  return l;
}

}  // namespace

void WeightsInUse::begin(ProgramBuilder& pb) {
  weights_.begin_program(pb);
  const auto scope = pb.scope("tables");
  const std::span<const WeightBuffers> small = weights_.use(pb, kSmallGroup);
  std::size_t next = 0;
  for (const Side side : {Side::encoder, Side::decoder}) {
    if (layers_of(config_, side) == 0) continue;
    Stack& s = stacks_[to_size(side)];
    s = {};
    s.first = next;
    s.norm = readable(pb, small[next++].data);
    for (std::int64_t b = 0; b < table_count(config_, side); ++b) {
      // A copy of its own: the group's place may be taken by a block.
      const Buffer table = pb.temp("table", {config_.buckets, config_.heads}, DType::f32);
      ops::copy(pb, small[next++].data, table);
      s.tables.push_back(table);
    }
  }
}

BlockInUse WeightsInUse::block(ProgramBuilder& pb, Side side, std::int64_t block,
                               Gradients gradients) {
  const std::span<const WeightBuffers> use = weights_.use(pb, block_group(config_, side, block));
  BlockParams<WeightBuffers> p;
  BlockParams<Buffer> g;
  std::size_t next = 0;
  BlockParams<WeightBuffers>::each(p, side, config_.gated, "",
                                   [&](const std::string&, WeightBuffers& w) { w = use[next++]; });
  check(next == use.size(), "a block has {} tensors, {} are listed", use.size(), next);
  if (!gradients.empty()) {
    next = 0;
    BlockParams<Buffer>::each(g, side, config_.gated, "",
                              [&](const std::string&, Buffer& b) { b = gradients[next++]; });
  }
  const auto attention = [&](const AttentionParams<WeightBuffers>& w,
                             const AttentionParams<Buffer>& d) {
    return AttentionInUse{.norm = {readable(pb, w.norm.data), d.norm},
                          .q = linear_of(w.q, d.q),
                          .k = linear_of(w.k, d.k),
                          .v = linear_of(w.v, d.v),
                          .o = linear_of(w.o, d.o)};
  };
  BlockInUse in_use;
  in_use.self = attention(p.self, g.self);
  if (side == Side::decoder) in_use.cross = attention(p.cross, g.cross);
  in_use.ffn = {.norm = {readable(pb, p.norm.data), g.norm},
                .wi_0 = linear_of(p.wi_0, g.wi_0),
                .wi_1 = config_.gated ? linear_of(p.wi_1, g.wi_1) : AdaptedLinear(),
                .wo = linear_of(p.wo, g.wo)};
  return in_use;
}

Gain WeightsInUse::final_norm(Side side, Gradients small) const {
  const Stack& s = stack(side);
  return {s.norm, small.empty() ? Buffer() : small[s.first]};
}

Buffer WeightsInUse::table(Side side, std::int64_t block) const {
  return stack(side).tables[table_index(block)];
}

Buffer WeightsInUse::table_gradient(Side side, std::int64_t block, Gradients small) const {
  if (small.empty()) return {};
  return small[stack(side).first + 1 + table_index(block)];
}

WeightBuffers WeightsInUse::embedding(ProgramBuilder& pb) {
  return weights_.use(pb, embedding_group(config_))[0];
}

WeightBuffers WeightsInUse::head(ProgramBuilder& pb) {
  return weights_.use(pb, head_group(config_))[0];
}

}  // namespace ballast::t5
