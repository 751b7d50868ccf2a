#include "models/t5/adapters.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::t5 {
namespace {

// "....DenseReluDense.wi_0" -> "wi"
std::string target_of(const std::string& module) {
  std::string target = module.substr(module.rfind('.') + 1);
  if (target.starts_with("wi")) target = "wi";
  return target;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

// Whether a tensor of this group gets an adapter.
bool is_adapted(const Config& config, int group, const StoredTensor& t,
                const LoraOptions& options) {
  if (group == kSmallGroup || group >= embedding_group(config) || t.data.shape.rank() != 2) {
    return false;
  }
  const std::string module = t.name.substr(0, t.name.rfind('.'));
  return options.modules.empty() ? contains(adapter_targets(options), target_of(module))
                                 : contains(options.modules, module);
}

std::int64_t elements_of_adapter(const StoredTensor& t, const LoraOptions& options) {
  return options.rank * (t.data.shape[0] + t.data.shape[1]);
}

}  // namespace

std::vector<std::string> adapter_targets(const LoraOptions& options) {
  if (!options.targets.empty()) return options.targets;
  return {"q", "k", "v", "o", "wi", "wo"};
}

std::int64_t adapter_parameters(const Config& config, std::span<const WeightGroup> groups,
                                const LoraOptions& options) {
  std::int64_t count = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const StoredTensor& t : groups[g].tensors) {
      if (is_adapted(config, static_cast<int>(g), t, options)) {
        count += elements_of_adapter(t, options);
      }
    }
  }
  return count;
}

void Adapters::declare(ProgramBuilder& pb, const Config& config, const BlockWeights& weights,
                       const LoraOptions& options, bool trains) {
  options_ = options;
  check(options.rank > 0, "adapters of rank {}", options.rank);
  check(options.hidden_dropout == 0 && options.rank_dropout == 0 && options.module_dropout == 0 &&
            options.dtype == DType::f32 && options.up_rate == 1 && options.max_norm == 0 &&
            options.excluded.empty(),
        "adapters of T5 have a rank, alpha, dropout of what they read, targets and modules alone");
  of_.resize(to_size(weights.groups()));
  std::int64_t elements = 0;
  for (int g = 0; g < weights.groups(); ++g) {
    for (const StoredTensor& t : weights.group(g).tensors) {
      std::string module = t.name.substr(0, t.name.rfind('.'));
      const bool wanted = is_adapted(config, g, t, options);
      of_[to_size(g)].push_back(wanted ? static_cast<int>(all_.size()) : -1);
      if (!wanted) continue;
      all_.push_back(
          {.name = std::move(module), .expert = 0, .a = {}, .b = {}, .da = {}, .db = {}});
      elements += elements_of_adapter(t, options);
    }
  }
  if (all_.empty()) {
    fail(ErrorCode::usage, "no matrix of a block is a target of the adapters",
         {{"targets q, k, v, o, wi, wo", "the matrices of a block"}});
  }
  const auto lay_out = [&](const char* name, Role role, Buffer AdapterIo::*a,
                           Buffer AdapterIo::*b) {
    const Buffer together = pb.persistent(name, {elements}, DType::f32, role);
    std::uint64_t at = 0;
    for (int g = 0; g < weights.groups(); ++g) {
      const auto& tensors = weights.group(g).tensors;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const int number = of_[to_size(g)][i];
        if (number < 0) continue;
        AdapterIo& io = all_[to_size(number)];
        const Shape& w = tensors[i].data.shape;
        const auto next = [&](const Shape& shape) {
          const Buffer part = pb.view(together, at, DType::f32, shape);
          at += static_cast<std::uint64_t>(shape.elements()) * 4;
          return part;
        };
        io.*a = next({options.rank, w[1]});
        io.*b = next({w[0], options.rank});
      }
    }
    return together;
  };
  lay_out("adapters", Role::weights, &AdapterIo::a, &AdapterIo::b);
  if (trains) {
    gradients_ = lay_out("adapters.grad", Role::gradient, &AdapterIo::da, &AdapterIo::db);
  }
}

void Adapters::attach(BlockInUse& w, const Config& config, Side side, std::int64_t number,
                      Use use) const {
  if (all_.empty()) return;
  const auto attention = [](AttentionInUse& a) {
    return AttentionParams<AdaptedLinear*>{nullptr, &a.q, &a.k, &a.v, &a.o};
  };
  BlockParams<AdaptedLinear*> layers = {.self = attention(w.self),
                                        .cross = attention(w.cross),
                                        .norm = nullptr,
                                        .wi_0 = &w.ffn.wi_0,
                                        .wi_1 = &w.ffn.wi_1,
                                        .wo = &w.ffn.wo};
  const std::vector<int>& numbers = of_[to_size(block_group(config, side, number))];
  std::size_t next = 0;
  BlockParams<AdaptedLinear*>::each(
      layers, side, config.gated, "", [&](const std::string&, AdaptedLinear* l) {
        const int adapter = numbers[next++];
        if (adapter < 0) return;
        const AdapterIo& a = all_[to_size(adapter)];
        l->adapter.a = a.a, l->adapter.b = a.b;
        l->adapter.scale = options_.scale();
        if (use == Use::infer) return;
        l->adapter.dropout = {.probability = options_.dropout,
                              .site = ops::random_site("dropout", a.name + ".lora", 0)};
        if (use == Use::backward) l->adapter_grads = {.da = a.da, .db = a.db};
      });
}

}  // namespace ballast::t5
