#include "models/t5/seq2seq.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "models/t5/seq2seq_pass.h"
#include "ops/fill.h"

namespace ballast::t5 {
namespace {

void check_trainable(const std::vector<WeightGroup>& groups) {
  for (const WeightGroup& g : groups) {
    for (const StoredTensor& t : g.tensors) {
      if (size_of(t.data.dtype) >= 2) continue;
      fail(ErrorCode::input,
           fmt::format("{} is {}; weights that train have 16 bits or more", t.name, t.data.dtype),
           {{"use the bf16 or f32 file", "small updates are lost in 8 bits"}});
    }
  }
}

// An nn.Embedding of transformers: a tied head is the token table itself, another head is a matrix.
bool is_embedding(std::string_view name) {
  return name == kEmbeddingName || name.ends_with("relative_attention_bias.weight");
}

}  // namespace

Seq2Seq::Seq2Seq(ProgramSet& set, Seq2SeqJob job, std::vector<WeightGroup> groups)
    : job_(std::move(job)) {
  validate(job_.config);
  check(job_.config.decoder_layers > 0, "{} has no decoder", job_.config.name);
  check(static_cast<int>(groups.size()) == group_count(job_.config),
        "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  check(!job_.batches.empty(), "there is at least one kind of step");
  check(job_.gradient == DType::f32 || job_.gradient == DType::bf16, "gradients are {}",
        job_.gradient);
  if (job_.trains && !job_.lora) {
    check_trainable(groups);
    // Weights that change cannot be streamed from the user's file.
    if (auto& s = job_.policy.streaming) s->stream_from = StreamSource::host;
  }
  {
    ProgramBuilder load(set, "load");
    weights_.emplace(load, std::vector<std::vector<WeightGroup>>{std::move(groups)}, job_.policy,
                     job_.format);
    declare_io(load);
    if (job_.lora) {
      adapters_.declare(load, job_.config, *weights_, *job_.lora, job_.trains);
      small_gradients_ = adapters_.gradients();
      io_.adapters = adapters_.all();
      for (const AdapterIo& a : io_.adapters) {
        if (!job_.trains) break;
        io_.gradients.push_back({a.name + ".lora_A.weight", a.da});
        io_.gradients.push_back({a.name + ".lora_B.weight", a.db});
      }
    }
    declare_gradients(load);
    if (job_.writes) declare_decoder(load);
    weights_->load(load, 0);
  }
  for (const StepIo& step : io_.steps) {
    ProgramBuilder pb(set, step.program);
    if (job_.trains && !job_.accumulates) ops::fill(pb, small_gradients_, 0);
    Seq2SeqPass(job_, *weights_, gradients_, adapters_, step, job_.trains).record(pb);
  }
  for (const StepIo& step : io_.eval_steps) {
    ProgramBuilder pb(set, step.program);
    Seq2SeqPass(job_, *weights_, gradients_, adapters_, step, false).record(pb);
  }
  if (decoder_) decoder_->record(set);
  if (job_.trains && job_.accumulates) {
    ProgramBuilder pb(set, "zero_gradients");
    for (const NamedGradient& g : io_.gradients) {
      ops::fill(pb, g.gradient, 0, pb.tier(g.gradient) == Tier::host ? Lane::host : Lane::compute);
    }
  }
  if (job_.trains && job_.record_update) record_updates(set);
}

// The n-th micro-batches of all kinds of steps lie in the same memory, as large as the largest.
void Seq2Seq::declare_io(ProgramBuilder& pb) {
  struct Largest {
    std::int64_t samples = 0, source = 0, target = 0;  // rows of all samples together
  };
  std::vector<Largest> largest;
  for (const auto* batches : {&job_.batches, &job_.eval_batches}) {
    for (const BatchShape& b : *batches) {
      check(b.samples > 0 && b.source > 0 && b.target > 0 && b.micro_batches > 0,
            "a step of {} x {} samples of {} and {} tokens", b.micro_batches, b.samples, b.source,
            b.target);
      largest.resize(std::max(largest.size(), to_size(b.micro_batches)));
      for (std::size_t i = 0; i < to_size(b.micro_batches); ++i) {
        Largest& l = largest[i];
        l.samples = std::max(l.samples, b.samples);
        l.source = std::max(l.source, b.samples * b.source);
        l.target = std::max(l.target, b.samples * b.target);
      }
    }
  }
  const auto host = [&](const char* name, const Shape& shape, DType dtype, Role role) {
    return pb.persistent(name, shape, dtype, role, Tier::host);
  };
  std::vector<MicroBatchIo> slots;
  for (const Largest& n : largest) {
    MicroBatchIo& s = slots.emplace_back();
    s.source = host("source", {n.source}, DType::i32, Role::input);
    s.source_lengths = host("source_lengths", {n.samples}, DType::i32, Role::input);
    s.decoder_input = host("decoder_input", {n.target}, DType::i32, Role::input);
    s.labels = host("labels", {n.target}, DType::i32, Role::input);
    s.label_weight = host("label_weight", {1}, DType::f32, Role::input);
    s.losses = host("losses", {n.target}, DType::f32, Role::output);
    if (job_.keep_states) {
      s.states = host("states", {n.source, job_.config.d_model}, DType::f32, Role::output);
    }
    if (job_.keep_logits) {
      s.logits = host("logits", {n.target, job_.config.vocabulary}, DType::f32, Role::output);
    }
  }
  const auto step_io = [&](const char* name, std::size_t number, const BatchShape& shape,
                           bool keeps) {
    StepIo step;
    step.program = number == 0 ? name : fmt::format("{}.{}", name, number);
    step.shape = shape;
    for (std::size_t i = 0; i < to_size(shape.micro_batches); ++i) {
      const MicroBatchIo& s = slots[i];
      const auto part = [&](Buffer b, std::int64_t length) {
        return pb.reshape(pb.rows(b, 0, shape.samples * length), {shape.samples, length});
      };
      const auto rows = [&](Buffer b, std::int64_t length) {
        return b && keeps ? pb.rows(b, 0, shape.samples * length) : Buffer();
      };
      step.micro_batches.push_back({.source = part(s.source, shape.source),
                                    .source_lengths = pb.rows(s.source_lengths, 0, shape.samples),
                                    .decoder_input = part(s.decoder_input, shape.target),
                                    .labels = part(s.labels, shape.target),
                                    .label_weight = s.label_weight,
                                    .losses = part(s.losses, shape.target),
                                    .states = rows(s.states, shape.source),
                                    .logits = rows(s.logits, shape.target)});
    }
    return step;
  };
  for (std::size_t k = 0; k < job_.batches.size(); ++k) {
    io_.steps.push_back(step_io("step", k, job_.batches[k], true));
  }
  for (std::size_t k = 0; k < job_.eval_batches.size(); ++k) {
    io_.eval_steps.push_back(step_io("eval", k, job_.eval_batches[k], false));
  }
}

// Those of a group's matrices lie together where the weights are between steps: with those that
// stream, in host memory. Vectors and tables, which are small, lie together on the device. So the
// norm has one sum for each group, and the same sums under every policy.
void Seq2Seq::declare_gradients(ProgramBuilder& pb) {
  if (!job_.trains || job_.lora) return;
  const int groups = weights_->groups();
  gradients_.resize(to_size(groups));
  constexpr std::uint64_t kAligned = 256;
  const auto room = [](const StoredTensor& t, DType dtype) {
    const auto bytes = static_cast<std::uint64_t>(t.data.shape.elements()) * size_of(dtype);
    return (bytes + kAligned - 1) / kAligned * kAligned;
  };
  const auto is_matrix = [](int g, const StoredTensor& t) {
    return g != kSmallGroup && t.data.shape.rank() == 2;
  };
  const auto matrix_dtype = [&](int g) {
    return g < embedding_group(job_.config) ? job_.gradient : DType::f32;
  };
  std::uint64_t small_bytes = 0;
  for (int g = 0; g < groups; ++g) {
    for (const StoredTensor& t : weights_->group(g).tensors) {
      if (!is_matrix(g, t)) small_bytes += room(t, DType::f32);
    }
  }
  small_gradients_ = pb.persistent("small.grad", {static_cast<std::int64_t>(small_bytes / 4)},
                                   DType::f32, Role::gradient);
  std::uint64_t small_at = 0;
  for (int g = 0; g < groups; ++g) {
    PackedGradients& grads = gradients_[to_size(g)];
    const DType dtype = matrix_dtype(g);
    std::uint64_t bytes = 0;
    for (const StoredTensor& t : weights_->group(g).tensors) {
      if (is_matrix(g, t)) bytes += room(t, dtype);
    }
    if (bytes > 0) {
      grads.matrices = pb.persistent(
          weights_->group(g).name + ".grad", {static_cast<std::int64_t>(bytes / size_of(dtype))},
          dtype, Role::gradient, weights_->resident(g) ? Tier::device : Tier::host);
    }
    std::uint64_t at = 0;
    for (const StoredTensor& t : weights_->group(g).tensors) {
      const bool matrix = is_matrix(g, t);
      std::uint64_t& from = matrix ? at : small_at;
      const DType type = matrix ? dtype : DType::f32;
      const Buffer b =
          pb.view(matrix ? grads.matrices : small_gradients_, from, type, t.data.shape);
      const auto own = static_cast<std::uint64_t>(t.data.shape.elements()) * size_of(type);
      const std::uint64_t gap = room(t, type) - own;
      if (matrix && gap > 0) grads.gaps.push_back({from + own, gap});
      from += room(t, type);
      grads.persistent.push_back(b);
      io_.gradients.push_back({t.name, b});
    }
  }
}

void Seq2Seq::declare_decoder(ProgramBuilder& pb) {
  DecoderJob job;
  job.config = job_.config;
  job.policy = job_.policy;
  job.precision = job_.precision;
  job.format = job_.format;
  job.beams = job_.writes->beams;
  job.positions = job_.writes->positions;
  job.padded = true;
  for (const BatchShape& b : job_.eval_batches) job.sources.push_back(b.source);
  std::ranges::sort(job.sources);
  const auto repeated = std::ranges::unique(job.sources);
  job.sources.erase(repeated.begin(), repeated.end());
  decoder_ = std::make_unique<Decoder>(pb, std::move(job), *weights_, adapters_);
}

std::vector<UpdatedTensor> Seq2Seq::trained_adapters() const {
  std::vector<UpdatedTensor> all;
  for (std::size_t i = 0; i < io_.gradients.size(); ++i) {
    const AdapterIo& a = io_.adapters[i / 2];
    UpdatedTensor t;
    t.name = io_.gradients[i].name;
    t.value = i % 2 == 0 ? a.a : a.b;
    t.gradient = io_.gradients[i].gradient;
    all.push_back(std::move(t));
  }
  return all;
}

// Weights narrower than f32 have an f32 master, unless the optimizer's rounding (Kahan, stochastic)
// makes that unnecessary.
std::vector<UpdatedTensor> Seq2Seq::trained_weights(ProgramBuilder& pb) const {
  std::vector<UpdatedTensor> all;
  for (int group = 0; group < weights_->groups(); ++group) {
    for (const WeightBuffers& persistent : weights_->persistent(pb, group)) {
      const NamedGradient& g = io_.gradients[all.size()];
      const Tier tier = pb.tier(g.gradient);
      UpdatedTensor t;
      t.name = g.name;
      t.value = persistent.data;
      t.gradient = g.gradient;
      t.decays = pb.shape(g.gradient).rank() > 1;
      if (is_embedding(g.name)) t.moment_bits = job_.embedding_moments;
      const bool narrow = pb.dtype(persistent.data) != DType::f32;
      if ((narrow && job_.optimizer.rounding == UpdateRounding::nearest) ||
          pb.tier(persistent.data) != tier) {
        t.narrow = persistent.data;
        t.value = pb.persistent(g.name + ".master", pb.shape(g.gradient), DType::f32,
                                Role::optimizer, tier);
      }
      all.push_back(std::move(t));
    }
  }
  return all;
}

void Seq2Seq::record_updates(ProgramSet& set) {
  Buffer factor;
  {
    ProgramBuilder init(set, "init_state");
    io_.trained = job_.lora ? trained_adapters() : trained_weights(init);
    for (UpdatedTensor& t : io_.trained) declare_states(init, job_.optimizer, t);
    io_.grad_norm = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    record_initial_state(init, io_.trained);
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, io_.trained);
  }
  {
    ProgramBuilder norm(set, "grad_norm");
    // Those that lie together follow each other.
    std::vector<UpdatedTensor> tensors = io_.trained;
    std::ranges::stable_partition(tensors, [&](const UpdatedTensor& t) {
      return norm.set().spec(t.gradient).root == small_gradients_;
    });
    record_gradient_norm(norm, tensors, job_.max_grad_norm, factor, io_.grad_norm);
  }
  {
    ProgramBuilder values(set, kValueNorm);
    record_value_norm(values, io_.trained, factor, io_.grad_norm);
  }
  ProgramBuilder pb(set, "update");
  record_update(pb, io_.trained, factor, job_.optimizer);
}

}  // namespace ballast::t5
