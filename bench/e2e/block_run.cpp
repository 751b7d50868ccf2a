#include "bench/e2e/block_run.h"

#include <sys/resource.h>

#include <chrono>
#include <utility>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/dit_block.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/linear/sgemm.h"
#include "ops/modulation_table.h"
#include "ops/rope_3d.h"

namespace ballast::bench {
namespace {

using wan::BlockParams;
using wan::LinearParams;

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

// Uniform in [-amplitude, amplitude); a linear congruential generator is random enough to time.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : state_(seed) {}
  float operator()(float amplitude) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return amplitude * (static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f);
  }

 private:
  std::uint64_t state_;
};

AdaptedLinear linear_of(const LinearParams<WeightBuffers>& w, const LinearParams<Buffer>& grads) {
  AdaptedLinear l;
  l.weight = {.weight = w.weight.data, .bias = w.bias.data, .scale = w.weight.scale};
  l.dweight = grads.weight;
  l.dbias = grads.bias;
  return l;
}

wan::BlockWeightsInUse in_use(std::span<const WeightBuffers> buffers,
                              const BlockParams<Buffer>& g) {
  BlockParams<WeightBuffers> p;
  std::size_t i = 0;
  BlockParams<WeightBuffers>::each(p, "",
                                   [&](const std::string&, WeightBuffers& b) { b = buffers[i++]; });
  wan::BlockWeightsInUse w;
  w.self_q = linear_of(p.self_attn.q, g.self_attn.q);
  w.self_k = linear_of(p.self_attn.k, g.self_attn.k);
  w.self_v = linear_of(p.self_attn.v, g.self_attn.v);
  w.self_o = linear_of(p.self_attn.o, g.self_attn.o);
  w.cross_q = linear_of(p.cross_attn.q, g.cross_attn.q);
  w.cross_k = linear_of(p.cross_attn.k, g.cross_attn.k);
  w.cross_v = linear_of(p.cross_attn.v, g.cross_attn.v);
  w.cross_o = linear_of(p.cross_attn.o, g.cross_attn.o);
  w.up = linear_of(p.ffn_up, g.ffn_up);
  w.down = linear_of(p.ffn_down, g.ffn_down);
  w.self_norm_q = {p.self_attn.norm_q.data, g.self_attn.norm_q};
  w.self_norm_k = {p.self_attn.norm_k.data, g.self_attn.norm_k};
  w.cross_norm_q = {p.cross_attn.norm_q.data, g.cross_attn.norm_q};
  w.cross_norm_k = {p.cross_attn.norm_k.data, g.cross_attn.norm_k};
  w.norm3 = {p.norm3.weight.data, g.norm3.weight};
  w.norm3_bias = {p.norm3.bias.data, g.norm3.bias};
  return w;
}

WeightGroup group_of(const wan::Config& config, const WeightFiles& file, std::string name) {
  WeightGroup group = {.name = std::move(name), .tensors = {}};
  const auto shapes = wan::block_shapes(config);
  BlockParams<Shape>::each(shapes, "", [&](const std::string& tensor, const Shape& shape) {
    const WeightTensor& t = file.get(tensor);
    group.tensors.push_back({.name = group.name + "." + tensor,
                             .data = {shape, file.dtype(t), file.extent(t)},
                             .scale = {}});
  });
  return group;
}

}  // namespace

BlockSize block_size(std::int64_t tokens) {
  wan::Config c = *wan::find_preset("wan2.1-t2v-1.3b");
  c.layers = 1;
  check(tokens > 0 && tokens % 4 == 0, "{} tokens are not a multiple of 4", tokens);
  return {.config = c, .tokens = tokens, .grid = {4, 1, tokens / 4}};
}

void write_block(const std::string& path, const wan::Config& config, DType matrices) {
  SafetensorsWriter writer({.metadata = {}, .alignment = 4096});
  const auto shapes = wan::block_shapes(config);
  std::uint64_t seed = 1;
  BlockParams<Shape>::each(shapes, "", [&](const std::string& name, const Shape& shape) {
    const bool matrix = shape.rank() == 2;
    const DType dtype = matrix ? matrices : DType::f32;
    // Width 1/sqrt(dim) keeps activations near 1, so no kernel meets subnormal numbers.
    const float amplitude = matrix ? 0.04f : 1.0f;
    const auto write = [=, n = shape.elements(), seed = seed++](const ByteSink& sink) {
      Noise noise(seed);
      std::vector<float> values(1 << 16);
      std::vector<std::byte> bytes(values.size() * size_of(dtype));
      for (std::int64_t done = 0; done < n;) {
        const std::int64_t count = std::min<std::int64_t>(n - done, 1 << 16);
        for (std::int64_t i = 0; i < count; ++i) values[to_size(i)] = noise(amplitude);
        convert(values.data(), DType::f32, bytes.data(), dtype, count);
        sink(std::span<const std::byte>(bytes).first(to_size(count) * size_of(dtype)));
        done += count;
      }
    };
    writer.add(name, dtype, shape, write);
  });
  writer.write(path, Durability::process);
}

Times now() {
  rusage r = {};
  getrusage(RUSAGE_SELF, &r);
  const auto clock = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(clock).count(), seconds(r.ru_utime) + seconds(r.ru_stime)};
}

BlockRun::BlockRun(const BlockSize& size, const BlockVariant& variant, const WeightFiles& file,
                   int threads, bool profiled)
    : size_(size), variant_(variant) {
  set_.backend = {.device = Device::cpu, .threads = threads};
  if (variant.streamed) policy_.streaming = Streaming{.slots = 2};
  record(file);
  count_flops();
  if (profiled) time_instructions();
  plan_ = plan_memory(set_);
  runner_ = std::make_unique<Runner>(set_, plan_);
  ops::warm_up_blas(runner_->compute_threads());
  runner_->run("load");
  fill_inputs();
}

wan::BlockParams<Buffer> BlockRun::declare_gradients(ProgramBuilder& load) {
  BlockParams<Shape> shapes = wan::block_shapes(size_.config);
  std::vector<Buffer> buffers;
  BlockParams<Shape>::each(shapes, "", [&](const std::string& name, const Shape& shape) {
    buffers.push_back(load.persistent(name + ".grad", shape, DType::f32, Role::gradient));
  });
  BlockParams<Buffer> grads;
  std::size_t i = 0;
  BlockParams<Buffer>::each(grads, "", [&](const std::string&, Buffer& b) { b = buffers[i++]; });
  return grads;
}

void BlockRun::record(const WeightFiles& file) {
  const wan::Config& c = size_.config;
  const std::int64_t tokens = size_.tokens;
  ProgramBuilder load(set_, "load");
  // As two groups the two visits of the block share no slot, as in a model of many blocks.
  std::vector<WeightGroup> groups = {group_of(c, file, "forward")};
  if (variant_.streamed) groups.push_back(group_of(c, file, "backward"));
  weights_.emplace(load, std::vector<std::vector<WeightGroup>>{std::move(groups)}, policy_,
                   variant_.format);
  weights_->load(load, 0);
  const BlockParams<Buffer> grads = declare_gradients(load);
  const auto input = [&](const char* name, const Shape& shape, DType dtype) {
    return load.persistent(name, shape, dtype, Role::input);
  };
  x_ = input("x", {tokens, c.dim}, DType::f32);
  dy_ = input("dy", {tokens, c.dim}, DType::f32);
  context_ = input("context", {c.text_len, c.dim}, DType::f32);
  e0_ = input("e0", {1, 6 * c.dim}, DType::f32);
  timestep_row_ = input("timestep_row", {tokens}, DType::i32);
  const Buffer rope = input("rope", {tokens, c.head_dim() / 2, 2}, DType::f32);
  const Buffer dcontext =
      load.persistent("dcontext", {c.text_len, c.dim}, DType::f32, Role::gradient);
  ops::rope_3d_table_into(load, size_.grid, rope);

  ProgramBuilder pb(set_, "step");
  weights_->begin_program(pb);
  const wan::BlockSample sample = {.index = 0,
                                   .tokens = tokens,
                                   .timestep_row = timestep_row_,
                                   .rope = rope,
                                   .context = context_,
                                   .dcontext = dcontext};
  const wan::DitBlock block(c, policy_, {});
  wan::BlockSaved saved;
  const auto weights = [&](int group, const BlockParams<Buffer>& g) {
    const std::span<const WeightBuffers> buffers = weights_->use(pb, group);
    wan::BlockWeightsInUse w = in_use(buffers, g);
    w.modulation = ops::modulation_table(pb, buffers[0].data, e0_, 6, false);  // [6, 1, C]
    w.dmodulation = pb.temp("dmodulation", pb.shape(w.modulation), DType::f32, Role::gradient);
    return w;
  };
  wan::DitBlock::Norms norms;
  block.forward(pb, weights(0, {}), sample, x_, Activations::kept, &saved, norms);

  BlockParams<Buffer>::each(grads, "",
                            [&](const std::string&, const Buffer& b) { ops::fill(pb, b, 0); });
  ops::fill(pb, dcontext, 0);
  const Buffer dx = pb.temp("dx", {tokens, c.dim}, DType::f32);
  ops::copy(pb, dy_, dx);
  const wan::BlockWeightsInUse w = weights(weights_->groups() - 1, grads);
  ops::fill(pb, w.dmodulation, 0);
  block.backward(pb, w, sample, saved, dx, true, [] {});
  ops::modulation_table_backward(pb, w.dmodulation, false, {}, grads.modulation);
  weights_->end_program(pb);
}

void BlockRun::fill_inputs() {
  Noise noise(99);
  for (const Buffer b : {x_, dy_, context_, e0_}) {
    const TensorView v = runner_->view(b);
    for (std::int64_t i = 0; i < v.elements(); ++i) v.as<float>()[i] = noise(1.0f);
  }
  const TensorView rows = runner_->view(timestep_row_);
  std::fill_n(rows.as<std::int32_t>(), rows.elements(), 0);
}

void BlockRun::count_flops() {
  const Program& step = set_.programs[to_size(set_.program_index("step"))];
  for (const Instruction& ins : step.instructions) {
    flops_ += ins.cost.flops;
    if (ins.cost.work == Work::attention || ins.cost.work == Work::attention_backward) {
      attention_flops_ += ins.cost.flops;
    }
  }
}

// Puts a clock around every kernel of the compute lane.
void BlockRun::time_instructions() {
  Program& step = set_.programs[to_size(set_.program_index("step"))];
  for (Instruction& ins : step.instructions) {
    if (ins.lane != Lane::compute) continue;
    // Nodes of a map stay.
    Spent& spent = spent_[std::string(ins.name.substr(ins.name.rfind('.') + 1))];
    ins.run = [run = std::move(ins.run), &spent, flops = ins.cost.flops](const Bindings& b) {
      const Times begin = now();
      run(b);
      spent.seconds += (now() - begin).wall;
      spent.flops += flops;
      ++spent.calls;
    };
  }
}

}  // namespace ballast::bench
