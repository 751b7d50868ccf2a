#include "infer/text_model.h"

#include <algorithm>

#include "core/error.h"
#include "io/checkpoint_parts.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "models/t5/recognise.h"
#include "ops/quantum.h"
#include "ops/sgemm.h"
#include "plan/budget_flag.h"
#include "plan/display_names.h"

namespace ballast::infer {
namespace {

// More slots would hold blocks that nobody waits for: one is read, one is copied, one is in use.
constexpr int kMostSlots = 3;

Bytes allowed(Bytes budget) { return budget.count == 0 ? kUnlimited : budget; }

}  // namespace

Bytes TextModelPlan::needed(Tier t) const {
  Bytes sum = memory.peak_of(t);
  for (const ProcessLine& l : lines) {
    if (l.tier == t) sum += l.bytes;
  }
  return sum;
}

TextModel::TextModel(const std::string& path, TextModelOptions opts)
    : options(std::move(opts)),
      checkpoint(open_part(path, CheckpointPart::text_encoder)),
      names(checkpoint),
      config(options.config ? *options.config : t5::model_config(checkpoint, names)) {
  if (options.prompts_per_pass < 1) {
    fail(ErrorCode::usage, fmt::format("{} prompts in a pass", options.prompts_per_pass));
  }
}

Backend TextModel::backend() const {
  if (options.device == Device::cpu) {
    return {.threads = options.threads > 0 ? options.threads : usable_cpus(read_machine()),
            .verify_weights = options.verify_weights};
  }
  return {.device = Device::cuda,
          .sm = options.profile ? options.profile->sm : open_gpu().sm,
          .verify_weights = options.verify_weights};
}

t5::Precision TextModel::precision() const {
  if (!options.dtype) return t5::precision_on(options.device);
  return {.activation = *options.dtype, .residual = *options.dtype};
}

TextModelPlan TextModel::plan_of(const ProgramSet& set, MemoryPolicy policy, Bytes results) const {
  TextModelPlan p;
  p.policy = std::move(policy);
  p.memory = plan_memory(set);
  p.lines = process_lines(set, {.blas_bytes_per_thread = ops::kBlasBufferTouched});
  p.lines.push_back({.name = "results", .bytes = results, .reason = "what the caller is given"});
  p.lines.insert(p.lines.end(), options.other_lines.begin(), options.other_lines.end());
  if (options.device == Device::cuda) {
    const MachineProfile profile =
        options.profile ? *options.profile : nearest_profile(open_gpu().name, open_gpu().sm);
    add_gpu_lines(p.lines, profile, p.memory.peak_of(Tier::host));
  }
  return p;
}

std::vector<Shortage> TextModel::shortages(const TextModelPlan& plan) const {
  const Bytes device = plan.needed(Tier::device);
  Bytes host = plan.needed(Tier::host);
  if (options.device == Device::cpu) host += device;
  return ballast::shortages(
      plan.memory, {device, host, Bytes{}},
      {allowed(options.budget.gpu), allowed(options.budget.host), kUnlimited});
}

std::vector<MemoryPolicy> TextModel::candidates(bool visited_again) const {
  if (options.policy) return {*options.policy};
  std::vector<MemoryPolicy> all;
  if (visited_again) all.push_back({.name = "resident"});
  for (const std::int64_t chunk : {std::int64_t{0}, kTokenQuantum}) {
    for (int slots = kMostSlots; slots > 0; --slots) {
      all.push_back({.name = fmt::format("stream{}{}", slots, chunk > 0 ? " chunked" : ""),
                     .slots = slots,
                     .chunk_tokens = chunk});
    }
  }
  return all;
}

void fail_refused(const std::string& what, const Refusal& refusal, Device device,
                  const Budget& budget) {
  const bool shared_ram = device == Device::cpu;
  std::string text =
      shortage_lines(refusal.shortages, budget, shared_ram, fmt::format(" ({})", what));
  std::string budgets;
  for (const Shortage& s : refusal.shortages) {
    budgets +=
        (budgets.empty() ? "" : " ") + larger_budget(budget, s.tier, megabytes_for(s.needed));
    text += fmt::format("\n{}: {} needed, {} allowed", memory_name(s.tier, shared_ram), s.needed,
                        s.allowed);
  }
  fail(ErrorCode::refused, text,
       {{budgets, "the plan that needs least memory fits"},
        {"fewer or shorter texts at once", "their activations are in memory together"}});
}

}  // namespace ballast::infer
