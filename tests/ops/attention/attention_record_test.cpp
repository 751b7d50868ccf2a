#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "ops/attention/attention.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "plan/bindings.h"
#include "tests/support/attention_case.h"

namespace ballast::ops {
namespace {

using support::Heads;
using support::Values;
using Inputs = support::AttentionInputs;
using Sizes = support::AttentionSizes;

// Runs what was recorded with every buffer at a place of its own.
struct Recording {
  explicit Recording(int threads) : pool(threads) {
    set.backend = support::attention_backend(threads);
  }

  void run() {
    std::vector<std::uint64_t> offsets(set.buffers.size());
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < set.buffers.size(); ++i) {
      if (set.buffers[i].root.id != i) continue;
      offsets[i] = end;
      end += (set.buffers[i].bytes + 255) / 256 * 256;
    }
    memory.resize(end);  // what was placed before stays where it was
    const ArenaBases bases = {.base = {memory.data(), memory.data()}};
    const auto bindings = [&](const Instruction& i) {
      return Bindings(set, offsets, bases, i, step, support::test_stream(pool));
    };
    for (const Instruction& i : set.programs[0].instructions) {
      if (i.prepare) i.prepare(bindings(i));
    }
    for (const Instruction& i : set.programs[0].instructions) i.run(bindings(i));
  }

  ProgramSet set;
  StepValues step;
  ThreadPool pool;
  support::DeviceVector<std::byte> memory;
};

// Where gradients are recorded to go.
enum class Gradients { apart, in_place };

// Forward and backward as recorded, in groups; returns all outputs' bytes.
// look: at what was recorded.
using Look = std::function<void(const std::vector<Instruction>&)>;
std::vector<std::byte> run_recorded(const Inputs& in, std::int64_t heads_per_group,
                                    const Look& look = {}, Gradients gradients = Gradients::apart) {
  const Sizes& n = in.n;
  Recording r(2);
  ProgramBuilder pb(r.set, "step");
  const Shape q_shape = {n.queries, n.heads, n.width}, k_shape = {n.keys, n.heads, n.width};
  const auto given = [&](const Shape& shape, const Values& values) {
    const Buffer b = pb.temp("given", shape, in.dtype);
    pb.emit("set", {.reads = {}, .writes = {b}}, [&values, b](const Bindings& at) {
      Heads dense(at.out(b).dtype, at.out(b).shape[0], at.out(b).shape[1], at.out(b).shape[2]);
      dense.set(values);
      std::memcpy(at.out(b).data, dense.view.data, at.out(b).bytes());
    });
    return b;
  };
  const Buffer q = given(q_shape, in.q), k = given(k_shape, in.k), v = given(k_shape, in.v),
               dout = given(q_shape, in.dout);
  const auto gradient = [&](const char* name, Buffer of) {
    return gradients == Gradients::in_place ? of : pb.temp(name, pb.shape(of), in.dtype);
  };
  const Buffer dq = gradient("dq", q), dk = gradient("dk", k), dv = gradient("dv", v);
  const AttentionOptions options = {.scale = static_cast<float>(n.scale),
                                    .kv_length = n.kv == n.keys ? -1 : n.kv,
                                    .heads_per_group = heads_per_group};
  const AttentionOut out = attention(pb, q, k, v, options);
  EXPECT_EQ(pb.shape(out.o), q_shape);
  EXPECT_EQ(pb.shape(out.lse), Shape({n.heads, n.queries}));
  attention_backward(pb, {.q = q, .k = k, .v = v, .o = out.o, .lse = out.lse}, dout, dq, dk, dv,
                     options);
  std::vector<std::byte> bytes;
  pb.emit("get", {.reads = {out.o, out.lse, dq, dk, dv}, .writes = {}}, [&](const Bindings& at) {
    support::device_memory_is_read();
    for (const Buffer b : {out.o, out.lse, dq, dk, dv}) {
      const ConstTensorView x = at.in(b);
      bytes.insert(bytes.end(), x.data, x.data + x.bytes());
    }
  });
  r.run();
  if (look) look(r.set.programs[0].instructions);
  return bytes;
}

class RecordedAttention : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, RecordedAttention, testing::Values(DType::f32, DType::bf16),
                         support::dtype_name);

TEST_P(RecordedAttention, GroupsOfHeadsGiveTheSameBits) {
  const Inputs in(support::attention_sizes(100, 230, 5, 24, 225), GetParam());
  const std::vector<std::byte> whole = run_recorded(in, 0);
  const support::AttentionOutputs direct = support::compute(in);
  Heads o(GetParam(), 100, 5, 24);
  o.set(direct.o);
  EXPECT_EQ(std::memcmp(whole.data(), o.view.data, o.view.bytes()), 0);
  for (const std::int64_t group : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(run_recorded(in, group), whole) << group;
  }
}

// Of heads as wide as Wan's, which a GPU computes with other kernels than narrow ones.
TEST_P(RecordedAttention, GradientsInThePlacesOfQueriesKeysAndValuesHaveTheSameBits) {
  for (const std::int64_t width : {24, 128}) {
    const Inputs in(support::attention_sizes(190, 230, 5, width, 225), GetParam());
    const std::vector<std::byte> whole = run_recorded(in, 0);
    for (const std::int64_t group : {0, 1, 2, 3}) {
      EXPECT_EQ(run_recorded(in, group, {}, Gradients::in_place), whole) << width << ", " << group;
    }
  }
}

TEST(Attention, GradientsInPlaceTakeTheMemoryOfAGroup) {
  const Inputs in(support::attention_sizes(10, 30, 5, 8), DType::bf16);
  const auto look = [](const std::vector<Instruction>& all) {
    ASSERT_EQ(all.size(), 4u + 3 + 3 * 4 + 1);
    for (std::size_t i = 7; i < 19; ++i) {
      EXPECT_EQ(all[i].name, (i - 7) % 4 == 0 ? "attention_backward" : "copy") << i;
    }
    // The gradient of two heads' queries is copied, not that of all five's.
    EXPECT_EQ(all[8].cost.bytes, 2.0 * (10 * 2 * 8) * 2);
  };
  run_recorded(in, 2, look, Gradients::in_place);
}

TEST(Attention, RecordsOneInstructionPerGroupWithItsCost) {
  const Inputs in(support::attention_sizes(10, 30, 5, 8), DType::bf16);
  run_recorded(in, 2, [](const std::vector<Instruction>& all) {
    ASSERT_EQ(all.size(), 4u + 3 + 3 + 1);  // groups of 2, 2 and 1 heads
    const bool scratch =
        attention_workspace({10, 2, 8}, DType::bf16, support::attention_backend()) > 0;
    const double product = 2.0 * 10 * 30 * 8;
    for (std::size_t i = 4; i < 10; ++i) {
      const double heads = i % 3 == 0 ? 1 : 2;
      EXPECT_EQ(all[i].name, i < 7 ? "attention" : "attention_backward");
      EXPECT_EQ(all[i].cost.work, i < 7 ? Work::attention : Work::attention_backward);
      EXPECT_EQ(all[i].cost.flops, heads * product * (i < 7 ? 2 : 5));
      EXPECT_EQ(all[i].reads.size(), i < 7 ? 3u : 6u);
      EXPECT_EQ(all[i].writes.size(), i < 7 ? 2u + scratch : 4u);
      EXPECT_EQ(all[i].prepare != nullptr, support::test_device() == Device::cuda);
    }
  });
}

TEST(AttentionWorkspace, OfABf16GradientIsBoundByGroups) {
  const std::int64_t length = 32760, width = 128;
  const auto bytes = [&](std::int64_t heads, int threads) {
    return attention_backward_workspace({length, heads, width}, length, DType::bf16,
                                        {.threads = threads});
  };
  EXPECT_EQ(bytes(40, 16), 16 * bytes(1, 16));
  EXPECT_EQ(bytes(4, 16), 4 * bytes(1, 16));
  EXPECT_EQ(attention_backward_workspace({length, 40, width}, length, DType::f32, {.threads = 1}),
            bytes(40, 1) - length * width * 4);
}

// One head of 32,760 queries and keys needs 2.1 GB to have the same bits in every run, 17 MB
// otherwise; a whole 14B layer would need 86 GB.
TEST(AttentionWorkspace, OfTheGpuGrowsWithTheScoresWhenDeterministic) {
  const std::int64_t length = 32760;
  const auto bytes = [&](std::int64_t heads, bool deterministic, int sm) {
    return attention_backward_workspace(
        {length, heads, 128}, length, DType::bf16,
        {.device = Device::cuda, .sm = sm, .deterministic = deterministic});
  };
  const std::int64_t delta = 131072;  // 4 * length, in whole 256 bytes
  EXPECT_EQ(bytes(1, true, 90), 2LL * 32768 * 32768 + 256 + delta);
  EXPECT_EQ(bytes(1, true, 80), 2LL * 32768 * 32768 + 256 + delta);  // 128, in whole 256 bytes
  EXPECT_EQ(bytes(1, false, 90), 256 + 4 * length * 128 + delta);
  EXPECT_EQ(bytes(1, false, 120), 4 * length * 128 + 256 + delta);
  EXPECT_GT(bytes(40, true, 90), 85'000'000'000);
  EXPECT_EQ(attention_workspace({length, 40, 128}, DType::bf16, {.device = Device::cuda}), 256);
}

TEST(AttentionWorkspace, OfThePlainKernelIsEmpty) {
  const Backend gpu = {.device = Device::cuda};
  for (const auto& [width, dtype] :
       {std::pair(128, DType::f32), std::pair(12, DType::bf16), std::pair(264, DType::bf16)}) {
    EXPECT_EQ(attention_workspace({50, 2, width}, dtype, gpu), 0);
    EXPECT_EQ(attention_backward_workspace({50, 2, width}, 70, dtype, gpu), 0);
  }
  EXPECT_FALSE(cuda::cudnn_has_attention(136, DType::bf16, 80));
  EXPECT_TRUE(cuda::cudnn_has_attention(136, DType::bf16, 90));
}

}  // namespace
}  // namespace ballast::ops
