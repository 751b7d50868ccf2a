#include "ops/attention/attention_cuda.h"

#include <cuda_runtime_api.h>

#include <array>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/cuda_check.h"
#include "memory/gpu.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "ops/attention/attention_graph.h"
#include "ops/attention/attention_products.h"
#include "ops/kernels/cudnn_graph.h"
#include "ops/kernels/prepared_table.h"

namespace ballast::ops::cuda {
namespace {

// A graph on certain addresses: what one execution needs.
struct Call {
  AttentionGraph graph;
  AttentionWorkspace workspace;
  std::array<void*, kAttentionTensors> places{};
  void* workspace_at = nullptr;
  float scale = 1;

  auto key() const { return std::tie(graph, places, workspace_at, scale); }
  friend bool operator<(const Call& a, const Call& b) { return a.key() < b.key(); }
};

// A queue's plans, one per graph, and its packs, one per call: a program that runs over and over
// makes them before its first run.
class AttentionPlans {
 public:
  explicit AttentionPlans(GpuQueue& queue) : queue_(queue) {
    int device = 0, major = 0, minor = 0;
    check_cuda(cudaGetDevice(&device), "asking for its number");
    const auto ask = [&](int* value, cudaDeviceAttr attribute) {
      check_cuda(cudaDeviceGetAttribute(value, attribute, device), "asking for its capability");
    };
    ask(&major, cudaDevAttrComputeCapabilityMajor);
    ask(&minor, cudaDevAttrComputeCapabilityMinor);
    sm_ = 10 * major + minor;
  }

  int sm() const { return sm_; }

  void prepare(const Call& call) { prepared(call); }
  void run(const Call& call) {
    const Prepared& p = prepared(call);
    p.plan->run(cudnn().raw(), p.pack);
  }

 private:
  struct Scalars {
    float scale = 1, one = 1;
  };
  struct Prepared {
    const CudnnPlan* plan = nullptr;
    std::unique_ptr<Scalars> scalars;  // the pack has their addresses
    CudnnPack pack;
  };

  // Not before it is needed: f32 runs without cuDNN.
  CudnnHandle& cudnn() { return queue_.local<CudnnHandle>(); }

  const Prepared& prepared(const Call& call) {
    const Prepared* const found = packs_.find(call);
    return found ? *found : make(call);
  }

  const Prepared& make(const Call& call) {
    const std::lock_guard alone(cudnn().making());
    if (const Prepared* const found = packs_.find(call)) return *found;  // another thread made it
    const char* name = call.graph.backward ? "attention_backward" : "attention";
    auto plan = plans_.find(call.graph);
    if (plan == plans_.end()) {
      const std::string what =
          fmt::format("{} of {} queries, {} keys, {} heads of {}", name, call.graph.queries,
                      call.graph.keys, call.graph.heads, call.graph.width);
      plan = plans_
                 .try_emplace(call.graph, attention_graph(call.graph), cudnn().maker(),
                              call.workspace.library, what)
                 .first;
    }
    Prepared p = {.plan = &plan->second,
                  .scalars = std::make_unique<Scalars>(Scalars{.scale = call.scale}),
                  .pack = {}};
    const std::vector<std::int64_t> ids = attention_tensors(call.graph);
    std::vector<void*> places;
    for (const std::int64_t id : ids) {
      places.push_back(id == kScale ? &p.scalars->scale
                       : id == kOne ? &p.scalars->one
                                    : call.places[to_size(id)]);
    }
    p.pack = CudnnPack(ids, places, call.workspace.library > 0 ? call.workspace_at : nullptr);
    return packs_.add(call, std::move(p));
  }

  GpuQueue& queue_;
  int sm_ = 0;
  std::map<AttentionGraph, CudnnPlan> plans_;  // of whoever makes one
  PreparedTable<Call, Prepared> packs_;
};

// cuDNN moves 16 bytes at a time.
bool aligned(std::initializer_list<const View*> operands) {
  for (const View* x : operands) {
    if (reinterpret_cast<std::uintptr_t>(x->data) % 16 != 0 || x->strides[0] % 8 != 0 ||
        x->strides[1] % 8 != 0) {
      return false;
    }
  }
  return true;
}

Shape shape_of(const View& q) { return {q.shape[0], q.shape[1], q.shape[2]}; }

bool for_cudnn(const View& q, const View& bias, std::int64_t keys, bool causal, int sm,
               std::initializer_list<const View*> operands) {
  return cudnn_has_attention(q.shape[2], q.dtype, sm) && q.elements() > 0 && keys > 0 && !bias &&
         !causal && aligned(operands);
}

Call describe(const View& q, const View& lse, std::int64_t keys, float scale,
              const View& workspace) {
  Call c;
  c.graph.queries = q.shape[0];
  c.graph.heads = q.shape[1];
  c.graph.width = q.shape[2];
  c.graph.keys = keys;
  c.graph.lse_head = lse.strides[0];
  c.places[kLse] = lse.data;
  c.workspace_at = workspace.data;
  c.scale = scale;
  return c;
}

void add(Call& c, AttentionTensor t, const View& x) {
  const auto i = to_size(t);
  c.graph.strides[i] = {x.strides[0], x.strides[1]};
  c.places[i] = x.data;
}

void check_workspace(const char* op, const View& workspace, std::int64_t needed) {
  const std::int64_t bytes = workspace ? workspace.elements() : 0;
  check(bytes >= needed, "{}: the workspace has {} bytes, {} are needed", op, bytes, needed);
  check(needed == 0 || reinterpret_cast<std::uintptr_t>(workspace.data) % 256 == 0,
        "{}: the workspace is not aligned to 256 bytes", op);
}

void check_width(const char* op, const View& q) {
  check(q.shape[2] <= kPlainWidth, "{}: heads of {} on the GPU, at most {}", op, q.shape[2],
        kPlainWidth);
}

bool by_cudnn(const Attention& a, int sm) {
  return for_cudnn(a.q, a.bias, a.kv_length, a.causal, sm, {&a.q, &a.k, &a.v, &a.o});
}

Call describe(const Attention& a, int sm) {
  Call c = describe(a.q, a.lse, a.kv_length, a.scale, a.workspace);
  add(c, kQ, a.q);
  add(c, kK, a.k);
  add(c, kV, a.v);
  add(c, kO, a.o);
  c.workspace = attention_parts(shape_of(a.q), a.q.dtype, sm);
  check_workspace("attention", a.workspace, c.workspace.bytes());
  return c;
}

bool by_cudnn(const AttentionBackward& a, int sm) {
  return !a.dbias_sums && for_cudnn(a.q, a.bias, a.kv_length, a.causal, sm,
                                    {&a.q, &a.k, &a.v, &a.o, &a.dout, &a.dq, &a.dk, &a.dv});
}

Call describe(const AttentionBackward& a, int sm) {
  Call c = describe(a.q, a.lse, a.kv_length, a.scale, a.workspace);
  c.graph.backward = true;
  c.graph.deterministic = a.deterministic;
  c.graph.dq_sum_is_ours = !a.deterministic && dq_sum_is_a_tensor(sm);
  add(c, kQ, a.q);
  add(c, kK, a.k);
  add(c, kV, a.v);
  add(c, kO, a.o);
  add(c, kDout, a.dout);
  add(c, kDq, a.dq);
  add(c, kDk, a.dk);
  add(c, kDv, a.dv);
  c.workspace =
      attention_backward_parts(shape_of(a.q), a.kv_length, a.q.dtype, sm, a.deterministic);
  check_workspace("attention_backward", a.workspace, c.workspace.bytes());
  auto* const at = static_cast<std::byte*>(a.workspace.data);
  c.places[kDqSum] = at + c.workspace.dq_sum_at();
  c.places[kDelta] = at + c.workspace.delta_at();
  return c;
}

}  // namespace

void attention(const Attention& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_of_scores(a, queue, Doing::run);
  check(!a.drop.on, "attention: a dropout needs whole_scores on the GPU");
  check_width("attention", a.q);
  AttentionPlans& plans = queue.local<AttentionPlans>();
  if (!by_cudnn(a, plans.sm())) return plain_attention(a, queue.stream().native);
  plans.run(describe(a, plans.sm()));
}

void attention_backward(const AttentionBackward& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_backward_of_scores(a, queue, Doing::run);
  check(!a.drop.on, "attention_backward: a dropout needs whole_scores on the GPU");
  check_width("attention_backward", a.q);
  AttentionPlans& plans = queue.local<AttentionPlans>();
  if (!by_cudnn(a, plans.sm())) return plain_attention_backward(a, queue.stream().native);
  zero_rows(a.dk, a.kv_length, queue.stream().native);
  zero_rows(a.dv, a.kv_length, queue.stream().native);
  plans.run(describe(a, plans.sm()));
}

void prepare_attention(const Attention& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_of_scores(a, queue, Doing::prepare);
  AttentionPlans& plans = queue.local<AttentionPlans>();
  if (by_cudnn(a, plans.sm())) plans.prepare(describe(a, plans.sm()));
}

void prepare_attention_backward(const AttentionBackward& a, GpuQueue& queue) {
  if (a.whole_scores) return attention_backward_of_scores(a, queue, Doing::prepare);
  AttentionPlans& plans = queue.local<AttentionPlans>();
  if (by_cudnn(a, plans.sm())) plans.prepare(describe(a, plans.sm()));
}

}  // namespace ballast::ops::cuda
