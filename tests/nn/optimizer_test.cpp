#include "nn/optimizer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "nn/batched_updates.h"
#include "ops/copy.h"
#include "plan/runner.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/sample_tensor.h"

namespace ballast {
namespace {

using support::SampleTensor;

constexpr std::int64_t kSize = 5120;  // large enough for 8-bit codes
constexpr OptimizerKind kKinds[] = {
    OptimizerKind::adamw,     OptimizerKind::adamw_optimi,    OptimizerKind::stableadamw,
    OptimizerKind::adamw8bit, OptimizerKind::adamw8bit_kahan, OptimizerKind::adafactor,
    OptimizerKind::sgd};
constexpr UpdateRounding kRoundings[] = {UpdateRounding::nearest, UpdateRounding::kahan,
                                         UpdateRounding::stochastic};

OptimizerOptions options(OptimizerKind kind, UpdateRounding rounding = UpdateRounding::nearest) {
  OptimizerOptions o;
  o.kind = kind;
  o.rounding = rounding;
  o.momentum = 0.9;
  o.ema_decay = 0.9;
  return o;
}

// One tensor and its optimizer as a caller has them, planned and run: whole, or cut into pieces
// that visit the device through temporaries.
class Training {
 public:
  Training(const OptimizerOptions& o, const Shape& shape, DType type, std::int64_t piece = 0,
           bool decays = true)
      : specs_(state_specs(o, shape, type)) {
    set_.backend.threads = 2;
    ProgramBuilder pb(set_, "update");
    p = pb.persistent("w", shape, type, Role::weights);
    g = pb.persistent("g", shape, DType::f32, Role::gradient);
    factor = pb.persistent("factor", {1}, DType::f32, Role::input);
    for (const StateSpec& s : specs_) {
      states.push_back(pb.persistent("w" + s.suffix, s.shape, s.dtype, Role::optimizer));
    }
    if (piece == 0) {
      record_optimizer(
          pb, o,
          {.p = p, .g = g, .factor = factor, .states = states, .site = "w", .decays = decays});
    }
    const std::int64_t total = shape.elements();
    for (std::int64_t first = 0; piece > 0 && first < total; first += piece) {
      const std::int64_t count = std::min(piece, total - first);
      const auto flat = [&](Buffer b) {
        return pb.view(b, static_cast<std::uint64_t>(first) * size_of(pb.dtype(b)), pb.dtype(b),
                       {count});
      };
      std::vector<Buffer> homes, visitors;
      for (std::size_t i = 0; i < specs_.size(); ++i) {
        homes.push_back(cut_state(pb, specs_[i], states[i], first, count));
        visitors.push_back(pb.temp("visitor", pb.shape(homes.back()), specs_[i].dtype));
        ops::copy(pb, homes[i], visitors[i]);
      }
      record_optimizer(pb, o,
                       {.p = flat(p),
                        .g = flat(g),
                        .factor = factor,
                        .states = visitors,
                        .site = "w",
                        .first_element = first,
                        .decays = decays});
      for (std::size_t i = 0; i < homes.size(); ++i) ops::copy(pb, visitors[i], homes[i]);
    }
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
    set(p, SampleTensor(type, shape).fill_normal(1));
    for (std::size_t i = 0; i < states.size(); ++i) {
      set(states[i], specs_[i].starts_as_parameter
                         ? SampleTensor(DType::f32, shape).fill(get(p).values())
                         : SampleTensor(specs_[i].dtype, specs_[i].shape));
    }
    set(factor, SampleTensor(DType::f32, {1}).fill({0.5}));
  }

  void step(int k, double lr = 1e-2) {
    set(g, SampleTensor(DType::f32, set_.spec(g).shape)
               .fill_normal(static_cast<std::uint32_t>(10 + k)));
    runner_->run(0, {.step = k, .seed = 5, .learning_rate = lr});
  }
  void run(int k, double lr, std::uint64_t seed = 5) {
    runner_->run(0, {.step = k, .seed = seed, .learning_rate = lr});
  }

  SampleTensor get(Buffer b) const {
    const TensorView v = runner_->view(b);
    SampleTensor t(v.dtype, v.shape);
    std::memcpy(t.view().data, v.data, v.bytes());
    return t;
  }
  void set(Buffer b, const SampleTensor& t) {
    const TensorView v = runner_->view(b);
    std::memcpy(v.data, t.view().data, v.bytes());
  }
  // p and all states.
  std::vector<std::vector<double>> everything() const {
    std::vector<std::vector<double>> all = {get(p).values()};
    for (const Buffer b : states) all.push_back(get(b).values());
    return all;
  }
  std::vector<double> state(std::string_view suffix) const {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].suffix == suffix) return get(states[i]).values();
    }
    ADD_FAILURE() << "no state " << suffix;
    return {};
  }

  Buffer p, g, factor;
  std::vector<Buffer> states;

 private:
  std::vector<StateSpec> specs_;
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

TEST(OptimizerNames, AreFoundInAnyCase) {
  for (const OptimizerKind k : kKinds) EXPECT_EQ(find_optimizer(name_of(k)), k);
  EXPECT_EQ(find_optimizer("AdamW8bitKahan"), OptimizerKind::adamw8bit_kahan);
  EXPECT_EQ(find_optimizer("adamw8bit_kahan"), OptimizerKind::adamw8bit_kahan);
  EXPECT_EQ(find_optimizer("AdamW"), OptimizerKind::adamw);
  EXPECT_EQ(find_optimizer("adam"), std::nullopt);
  EXPECT_EQ(find_optimizer(""), std::nullopt);
}

std::string list(const OptimizerOptions& o, const Shape& shape, DType type,
                 MomentBits bits = MomentBits::by_size) {
  std::string text;
  for (const StateSpec& s : state_specs(o, shape, type, bits)) {
    text += fmt::format("{} {} {}; ", s.suffix, s.dtype, s.shape);
  }
  return text;
}

TEST(OptimizerStates, AreWhatEachKindKeeps) {
  OptimizerOptions o;
  EXPECT_EQ(list(o, {4, 6}, DType::bf16), ".m f32 [4, 6]; .v f32 [4, 6]; ");
  o.state_dtype = DType::bf16;
  o.rounding = UpdateRounding::kahan;
  EXPECT_EQ(list(o, {9}, DType::bf16), ".m bf16 [9]; .v bf16 [9]; .kahan bf16 [9]; ");
  EXPECT_EQ(list(o, {9}, DType::f32), ".m bf16 [9]; .v bf16 [9]; ");
  o = {.kind = OptimizerKind::adamw_optimi};
  EXPECT_EQ(list(o, {9}, DType::bf16), ".m bf16 [9]; .v bf16 [9]; .kahan bf16 [9]; ");
  EXPECT_EQ(list(o, {9}, DType::f32), ".m f32 [9]; .v f32 [9]; ");
  o.kind = OptimizerKind::stableadamw;
  EXPECT_EQ(list(o, {9}, DType::bf16), ".m bf16 [9]; .v bf16 [9]; .kahan bf16 [9]; ");
  o.kahan_unasked = false;
  EXPECT_EQ(list(o, {9}, DType::bf16), ".m bf16 [9]; .v bf16 [9]; ");
  o = {.kind = OptimizerKind::adamw8bit};
  EXPECT_EQ(list(o, {64, 64}, DType::f32),
            ".m u8 [4096]; .m.absmax f32 [16]; .v u8 [4096]; .v.absmax f32 [16]; ");
  EXPECT_EQ(list(o, {63, 65}, DType::f32), ".m f32 [63, 65]; .v f32 [63, 65]; ");
  o = {.kind = OptimizerKind::adamw8bit_kahan};
  EXPECT_EQ(list(o, {4097}, DType::bf16),
            ".m u8 [4097]; .m.absmax f32 [17]; .v u8 [4097]; .v.absmax f32 [17]; "
            ".kahan bf16 [4097]; ");
  EXPECT_EQ(list(o, {5}, DType::f32), ".m f32 [5]; .v f32 [5]; .kahan f32 [5]; ");
  o = {.kind = OptimizerKind::adamw8bit};
  EXPECT_EQ(list(o, {80, 64}, DType::f32, MomentBits::always_32),
            ".m f32 [80, 64]; .v f32 [80, 64]; ");
  o = {.kind = OptimizerKind::adafactor, .ema_decay = 0.9};
  EXPECT_EQ(list(o, {2, 3, 4}, DType::f32),
            ".row f32 [2, 3]; .column f32 [2, 4]; "
            ".ema f32 [2, 3, 4]; ");
  EXPECT_EQ(list(o, {7}, DType::bf16), ".v f32 [7]; .ema f32 [7]; ");
  EXPECT_TRUE(state_specs(o, {7}, DType::bf16)[1].starts_as_parameter);
  o = {.kind = OptimizerKind::sgd};
  EXPECT_EQ(list(o, {7}, DType::bf16), "");
  o.momentum = 0.5;
  o.rounding = UpdateRounding::kahan;
  EXPECT_EQ(list(o, {7}, DType::bf16), ".momentum f32 [7]; .kahan bf16 [7]; ");
}

TEST(OptimizerStates, AreCutInProportion) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const auto specs = state_specs({.kind = OptimizerKind::adamw8bit}, {5000}, DType::f32);
  const Buffer codes = pb.persistent("m", specs[0].shape, specs[0].dtype, Role::optimizer);
  const Buffer absmax = pb.persistent("a", specs[1].shape, specs[1].dtype, Role::optimizer);
  const auto cut = [&](std::size_t i, Buffer b, std::int64_t first, std::int64_t count) {
    return set.spec(cut_state(pb, specs[i], b, first, count));
  };
  EXPECT_EQ(cut(0, codes, 512, 1024).offset, 512u);
  EXPECT_EQ(cut(0, codes, 512, 1024).shape, (Shape{1024}));
  EXPECT_EQ(cut(1, absmax, 512, 1024).offset, 8u);
  EXPECT_EQ(cut(1, absmax, 512, 1024).shape, (Shape{4}));
  EXPECT_EQ(cut(1, absmax, 4864, 136).shape, (Shape{1}));
  EXPECT_EQ(cut(1, absmax, 0, 5000).shape, (Shape{20}));
  EXPECT_THROW(cut(1, absmax, 100, 256), Error);
  EXPECT_THROW(cut(1, absmax, 256, 100), Error) << "the tensor does not end there";
  EXPECT_THROW(cut(0, codes, 4864, 137), Error);
  const auto factored = state_specs({.kind = OptimizerKind::adafactor}, {50, 100}, DType::f32);
  const Buffer row = pb.persistent("r", factored[0].shape, DType::f32, Role::optimizer);
  EXPECT_NO_THROW(cut_state(pb, factored[0], row, 0, 5000));
  EXPECT_THROW(cut_state(pb, factored[0], row, 256, 256), Error);
}

TEST(OptimizerSteps, MoveWeightsAndStates) {
  for (const OptimizerKind kind : kKinds) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const UpdateRounding rounding : kRoundings) {
        Training t(options(kind, rounding), {20, kSize / 20}, type);
        const auto before = t.everything();
        t.step(1);
        t.step(2);
        const auto after = t.everything();
        ASSERT_EQ(before.size(), after.size());
        for (std::size_t i = 0; i < before.size(); ++i) {
          EXPECT_NE(before[i], after[i]) << name_of(kind) << " " << name_of(type) << " " << i;
        }
        for (const double x : after[0]) ASSERT_TRUE(std::isfinite(x)) << name_of(kind);
      }
    }
  }
}

TEST(OptimizerSteps, GiveTheSameBitsInPieces) {
  for (const OptimizerKind kind : kKinds) {
    for (const UpdateRounding rounding : kRoundings) {
      const OptimizerOptions o = options(kind, rounding);
      const auto quantum = update_quantum(o);
      EXPECT_EQ(quantum.has_value(),
                kind != OptimizerKind::adafactor && kind != OptimizerKind::stableadamw);
      if (!quantum) continue;
      const Shape shape = {kSize + 77};
      Training whole(o, shape, DType::bf16), pieces(o, shape, DType::bf16, 3 * *quantum);
      for (int k = 1; k <= 3; ++k) {
        whole.step(k);
        pieces.step(k);
      }
      EXPECT_TRUE(whole.everything() == pieces.everything()) << name_of(kind);
    }
  }
  OptimizerOptions stable = options(OptimizerKind::adamw8bit_kahan);
  stable.stabilize = true;
  EXPECT_EQ(update_quantum(stable), std::nullopt);
  EXPECT_THROW(Training(stable, {kSize}, DType::bf16, 1024), Error);
  EXPECT_THROW(Training(options(OptimizerKind::adamw), {kSize}, DType::bf16, 100), Error);
}

TEST(OptimizerSteps, RoundAtRandomBySeedAlone) {
  const OptimizerOptions o = options(OptimizerKind::adamw, UpdateRounding::stochastic);
  Training a(o, {kSize}, DType::bf16), b(o, {kSize}, DType::bf16);
  a.step(1, 1e-4);
  b.step(1, 1e-4);
  EXPECT_EQ(a.everything(), b.everything());
  a.run(2, 1e-4);
  b.run(2, 1e-4, 6);
  EXPECT_NE(a.everything()[0], b.everything()[0]);
}

TEST(OptimizerSteps, LeaveVectorsUndecayed) {
  for (const OptimizerKind kind : kKinds) {
    if (kind == OptimizerKind::adamw8bit_kahan) continue;  // its decay has no effect anyway
    OptimizerOptions o = options(kind);
    o.weight_decay = 0.5;
    Training decayed(o, {kSize}, DType::f32), kept(o, {kSize}, DType::f32, 0, false);
    o.weight_decay = 0;
    Training none(o, {kSize}, DType::f32);
    decayed.step(1);
    kept.step(1);
    none.step(1);
    EXPECT_EQ(kept.everything(), none.everything()) << name_of(kind);
    EXPECT_NE(decayed.everything()[0], none.everything()[0]) << name_of(kind);
  }
}

TEST(OptimizerSteps, KeepAMovingAverageOfTheWeights) {
  Training t(options(OptimizerKind::sgd), {100}, DType::bf16);
  std::vector<double> want = t.get(t.p).values();
  EXPECT_EQ(t.state(".ema"), want);
  for (int k = 1; k <= 4; ++k) {
    t.step(k, 0.1);
    const std::vector<double> p = t.get(t.p).values(), ema = t.state(".ema");
    for (std::size_t i = 0; i < want.size(); ++i) {
      want[i] = 0.9 * want[i] + 0.1 * p[i];
      EXPECT_NEAR(ema[i], want[i], 4e-6);
    }
  }
}

TEST(OptimizerSteps, ApplyTheClippingFactor) {
  OptimizerOptions o;
  o.kind = OptimizerKind::sgd;
  o.weight_decay = 0;
  Training t(o, {1}, DType::f32);
  t.set(t.p, SampleTensor(DType::f32, {1}).fill({4}));
  t.set(t.g, SampleTensor(DType::f32, {1}).fill({8}));
  t.run(1, 0.25);
  EXPECT_EQ(t.get(t.p)[0], 4 - 0.25 * 0.5 * 8);
}

TEST(OptimizerSteps, AllocateNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  for (const OptimizerKind kind : kKinds) {
    for (const UpdateRounding rounding : kRoundings) {
      Training t(options(kind, rounding), {20, kSize / 20}, DType::bf16);
      t.set(t.g, SampleTensor(DType::f32, {20, kSize / 20}).fill_normal(3));
      allocation_hook::arm();
      t.run(1, 1e-2);
      t.run(2, 1e-2);
      const auto seen = allocation_hook::disarm();
      EXPECT_EQ(seen.calls(), 0) << name_of(kind) << "\n" << seen.first;
    }
  }
}

TEST(OptimizerSteps, RefuseTooFewAndTooManyStates) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer p = pb.persistent("p", {8}, DType::f32, Role::weights);
  const Buffer m = pb.persistent("m", {8}, DType::f32, Role::optimizer);
  const auto record = [&](std::vector<Buffer> states) {
    record_optimizer(pb, {}, {.p = p, .g = m, .factor = {}, .states = states, .site = "p"});
  };
  EXPECT_NO_THROW(record({m, m}));
  EXPECT_THROW(record({m}), Error);
  EXPECT_THROW(record({m, m, m}), Error);
}

// Tensors of the same types become one instruction, in the order they came; optimizers that have no
// such instruction record each at once.
TEST(BatchedUpdates, RecordsOneInstructionForTheSameTypes) {
  for (const OptimizerKind kind :
       {OptimizerKind::adamw, OptimizerKind::adamw8bit, OptimizerKind::adafactor}) {
    OptimizerOptions o = options(kind);
    o.ema_decay.reset();
    ProgramSet set;
    ProgramBuilder pb(set, "update");
    BatchedUpdates together(pb, o);
    const Buffer factor = pb.persistent("factor", {1}, DType::f32, Role::input);
    std::vector<std::vector<Buffer>> states;
    for (const DType type : {DType::f32, DType::bf16, DType::f32}) {
      const std::string name = fmt::format("w{}", states.size());
      const Buffer p = pb.persistent(name, {kSize}, type, Role::weights);
      const Buffer g = pb.persistent(name + ".g", {kSize}, DType::f32, Role::gradient);
      auto& own = states.emplace_back();
      for (const StateSpec& s : state_specs(o, {kSize}, type)) {
        own.push_back(pb.persistent(name + s.suffix, s.shape, s.dtype, Role::optimizer));
      }
      together.add({.p = p, .g = g, .factor = factor, .states = own, .site = name});
    }
    const std::vector<Instruction>& code = set.programs.at(0).instructions;
    EXPECT_EQ(code.size(), together.can_wait() ? 0u : 3u);
    together.flush();
    together.flush();
    EXPECT_EQ(together.can_wait(), kind != OptimizerKind::adafactor);
    if (!together.can_wait()) {
      EXPECT_EQ(code.size(), 3u);
      continue;
    }
    ASSERT_EQ(code.size(), 2u);
    // Two tensors, their states and gradients, the factor.
    EXPECT_EQ(code[0].reads.size(), 2 * (2 + states[0].size()) + 1) << name_of(kind);
    EXPECT_EQ(code[1].reads.size(), 2 + states[1].size() + 1);
  }
}

}  // namespace
}  // namespace ballast
