// The gradients of a pass: where backward adds to them, when they come and when they leave.

#include <string_view>

#include "core/to_size.h"
#include "models/wan/dit_pass.h"
#include "ops/copy.h"
#include "ops/fill.h"

namespace ballast::wan {
namespace {

// Of a block's tensor.
GradientPart gradient_part(std::string_view name) {
  if (name.starts_with("ffn.") || name.starts_with("cross_attn.o.")) {
    return GradientPart::feed_forward;
  }
  if (name.starts_with("cross_attn.") || name.starts_with("norm3.") ||
      name.starts_with("self_attn.o.")) {
    return GradientPart::cross_attention;
  }
  return GradientPart::self_attention;
}

}  // namespace

std::vector<GradientPart> block_gradient_parts() {
  std::vector<GradientPart> parts;
  BlockParams<Buffer> names;
  BlockParams<Buffer>::each(
      names, "", [&](const std::string& name, Buffer&) { parts.push_back(gradient_part(name)); });
  return parts;
}

// With gradients that wait in host memory a temporary takes their place while backward adds to it.
void DitPass::declare_gradients(ProgramBuilder& pb, int group) {
  GroupGradients& grads = gradients_[to_size(group)];
  grads.device.clear();
  for (const Buffer persistent : grads.persistent) {
    grads.device.push_back(pb.tier(persistent) == Tier::device
                               ? persistent
                               : pb.temp("grad", pb.shape(persistent), DType::f32, Role::gradient));
  }
}

void DitPass::begin_gradient(ProgramBuilder& pb, Buffer persistent, Buffer here) {
  if (!loss_sum_) {
    ops::fill(pb, here, 0);
  } else if (here != persistent) {
    ops::copy(pb, persistent, here, Lane::upload);  // from the step's earlier runs
  }
}

void DitPass::begin_gradients(ProgramBuilder& pb, int group) {
  declare_gradients(pb, group);
  const GroupGradients& grads = gradients_[to_size(group)];
  for (std::size_t i = 0; i < grads.persistent.size(); ++i) {
    begin_gradient(pb, grads.persistent[i], grads.device[i]);
  }
}

GradientPart DitPass::part_of(std::size_t tensor) const {
  return parts_.empty() ? GradientPart::feed_forward : parts_[tensor];
}

void DitPass::come_gradients(ProgramBuilder& pb, int group, GradientPart part) {
  leave_gradients(pb, part);
  const GroupGradients& grads = gradients_[to_size(group)];
  for (std::size_t i = 0; i < grads.persistent.size(); ++i) {
    if (part_of(i) != part) continue;
    begin_gradient(pb, grads.persistent[i], grads.device[i]);
    if (grads.device[i] == grads.persistent[i]) continue;
    leaving_[to_size(part)].push_back({grads.device[i], grads.persistent[i]});
  }
}

void DitPass::leave_gradients(ProgramBuilder& pb, GradientPart part) {
  std::vector<Leaving>& all = leaving_[to_size(part)];
  for (const Leaving& l : all) ops::copy(pb, l.here, l.persistent, Lane::download);
  all.clear();
}

void DitPass::end_gradients(ProgramBuilder& pb, int group) {
  const GroupGradients& grads = gradients_[to_size(group)];
  for (std::size_t i = 0; i < grads.persistent.size(); ++i) {
    if (grads.device[i] == grads.persistent[i]) continue;
    ops::copy(pb, grads.device[i], grads.persistent[i], Lane::download);
  }
}

}  // namespace ballast::wan
