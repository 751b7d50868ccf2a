#include "infer/adapter_stack.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/wan/dit_pass.h"

namespace ballast::infer {
namespace {

const Advice kMerge = {"--merge-loras", "puts it into a copy of the model instead"};

bool applies(const AppliedLora& l, int expert) { return l.expert < 0 || l.expert == expert; }

void check_lora(const AppliedLora& l, const std::set<std::string, std::less<>>& targets,
                int experts) {
  check(l.lora != nullptr && l.expert < experts, "a LoRA for expert {} of {}", l.expert, experts);
  const std::string& path = l.lora->path();
  if (!std::isfinite(l.strength) || std::abs(l.strength) > 1e4) {
    fail(ErrorCode::usage, "{}: a strength of {}", path, l.strength);
  }
  for (const wan::LoraModule& m : l.lora->modules()) {
    if (!targets.contains(m.name)) {
      fail(ErrorCode::input,
           fmt::format("{} changes {}, which can have no adapter while the model runs", path,
                       printable(m.name)),
           {kMerge});
    }
    if (m.rank == 0 || m.diff || m.diff_b) {
      fail(ErrorCode::input,
           fmt::format("{}: {} adds to the layer itself, not only factors", path, m.name),
           {kMerge});
    }
  }
}

void put(Runner& runner, Buffer to, const std::vector<float>& values) {
  const DType dtype = runner.view(to).dtype;
  std::vector<std::byte> stored(values.size() * size_of(dtype));
  convert(values.data(), DType::f32, stored.data(), dtype, std::ssize(values));
  runner.write(to, stored);
}

}  // namespace

AdapterStack::AdapterStack(const wan::Config& model, std::vector<AppliedLora> loras, int experts)
    : loras_(std::move(loras)) {
  if (loras_.empty()) return;
  std::vector<std::string> modules;
  for (std::int64_t block = 0; block < model.layers; ++block) {
    for (const wan::AdapterTarget& t : wan::adapter_targets(model)) {
      modules.push_back(fmt::format("blocks.{}.{}", block, t.name));
    }
  }
  const std::set<std::string, std::less<>> targets(modules.begin(), modules.end());
  for (const AppliedLora& l : loras_) check_lora(l, targets, experts);
  for (const std::string& module : modules) {
    std::int64_t most = 0;  // over the experts, which have adapters of one shape
    for (int e = 0; e < experts; ++e) {
      std::int64_t sum = 0;
      for (const AppliedLora& l : loras_) {
        const wan::LoraModule* m = applies(l, e) ? l.lora->find(module) : nullptr;
        if (m) sum += m->rank;
      }
      most = std::max(most, sum);
    }
    if (most == 0) excluded_.push_back(module);
    rank_ = std::max(rank_, most);
  }
  // Both factors of a layer, one as it is read and one as it is stored.
  reading_ = {static_cast<std::uint64_t>(4 * rank_ * std::max(model.dim, model.ffn_dim)) *
              sizeof(float)};
}

void AdapterStack::apply(wan::DitJob& job) const {
  job.adapters_in_inference = !empty();
  if (empty()) return;
  job.lora = {.rank = rank_,
              .alpha = static_cast<float>(rank_),  // scales are in the factors
              .dtype = job.precision.activation,
              .excluded = excluded_};
}

void AdapterStack::fill(const wan::Dit& dit, Runner& runner) const {
  std::vector<float> down, up, part;
  for (const AdapterIo& a : dit.io().adapters) {
    const Shape a_shape = runner.view(a.a).shape, b_shape = runner.view(a.b).shape;
    const std::int64_t in = a_shape[1], out = b_shape[0];
    down.assign(to_size(a_shape.elements()), 0);
    up.assign(to_size(b_shape.elements()), 0);
    std::int64_t row = 0;
    for (const AppliedLora& l : loras_) {
      const wan::LoraModule* m = applies(l, a.expert) ? l.lora->find(a.name) : nullptr;
      if (!m) continue;
      if (m->in() != in || m->out() != out) {
        fail(ErrorCode::input, "{}: {} is for a layer of {} x {}, this one is {} x {}",
             l.lora->path(), m->name, m->out(), m->in(), out, in);
      }
      m->down.read(0, std::span(down).subspan(to_size(row * in), to_size(m->rank * in)));
      part.resize(to_size(out * m->rank));
      m->up.read(0, part);
      const auto scale = static_cast<float>(l.strength * m->scale());
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t r = 0; r < m->rank; ++r) {
          up[to_size(o * rank_ + row + r)] = scale * part[to_size(o * m->rank + r)];
        }
      }
      row += m->rank;
    }
    put(runner, a.a, down);
    put(runner, a.b, up);
  }
}

}  // namespace ballast::infer
