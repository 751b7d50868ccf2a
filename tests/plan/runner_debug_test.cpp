// Programs that break the rules, and what the debug runner says about them. The kernels reach
// memory they have no right to through captured pointers, as a faulty kernel would by arithmetic.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/program_builder.h"
#include "plan/runner.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

class RunnerDebugTest : public testing::Test {
 protected:
  Buffer temp(std::string_view name, std::int64_t n = 64) { return pb.temp(name, {n}, DType::f32); }
  // Writes the value to all of b.
  void emit_fill(std::string_view name, Buffer b, float value) {
    pb.emit(name, {.writes = {b}}, [b, value](const Bindings& bind) {
      const TensorView v = bind.out(b);
      std::fill_n(v.as<float>(), v.elements(), value);
    });
  }
  void emit_copy(std::string_view name, Buffer from, Buffer to) {
    pb.emit(name, {.reads = {from}, .writes = {to}}, [from, to](const Bindings& b) {
      std::copy_n(b.in(from).as<float>(), b.out(to).elements(), b.out(to).as<float>());
    });
  }
  float run(const RunnerDebug& debug, std::uint64_t guard_bytes = 0) {
    const MemoryPlan plan = plan_memory(set, {.guard_bytes = guard_bytes});
    Runner runner(set, plan, {.disk_readers = 1, .debug = debug});
    runner.run("p");
    return *runner.view(result).as<float>();
  }

  static constexpr RunnerDebug kPlain{.order = Order::recorded};
  static constexpr RunnerDebug kPoison{.order = Order::recorded, .poison = true};
  static constexpr RunnerDebug kGuards{.order = Order::recorded, .check_guards = true};
  static constexpr RunnerDebug kNan{.order = Order::recorded, .poison = true, .check_nan = true};

  ProgramSet set;
  ProgramBuilder pb{set, "p"};
  Buffer result = pb.persistent("result", {1}, DType::f32, Role::output);
};

TEST_F(RunnerDebugTest, PoisonShowsAUseAfterDeath) {
  const Buffer x = temp("x", 1);
  const float* kept = nullptr;
  pb.emit("make", {.writes = {x}}, [&kept, x](const Bindings& b) {
    kept = b.out(x).as<float>();
    b.out(x).as<float>()[0] = 7;
  });
  pb.emit("late", {.writes = {result}},
          [this, &kept](const Bindings& b) { *b.out(result).as<float>() = *kept; });
  EXPECT_EQ(run(kPlain), 7);  // goes unnoticed
  EXPECT_TRUE(std::isnan(run(kPoison)));
  EXPECT_FAILS(run(kNan), ErrorCode::internal, "late wrote NaN to element 0 of result");
}

TEST_F(RunnerDebugTest, PoisonShowsRelianceOnZero) {
  const Buffer sum = temp("sum");
  pb.emit("accumulate", {.writes = {sum}},
          [sum](const Bindings& b) { b.out(sum).as<float>()[0] += 1; });
  emit_copy("take", sum, result);
  EXPECT_EQ(run(kPlain), 1);  // the arena happens to be fresh
  EXPECT_TRUE(std::isnan(run(kPoison)));
}

TEST_F(RunnerDebugTest, PoisonShowsRelianceOnTheTenantBefore) {
  const Buffer x = temp("x"), y = temp("y");
  emit_fill("make", x, 3);
  pb.emit("claim", {.writes = {y}}, [](const Bindings&) {});  // leaves what x left
  emit_copy("take", y, result);
  EXPECT_EQ(run(kPlain), 3);
  EXPECT_TRUE(std::isnan(run(kPoison)));
}

TEST_F(RunnerDebugTest, PoisonLeavesRightProgramsAndPersistentBuffersAlone) {
  const Buffer x = temp("x"), y = temp("y"), z = temp("z");
  const Buffer top = pb.rows(y, 0, 32), bottom = pb.rows(y, 32, 32);
  emit_fill("x", x, 2);
  emit_fill("top", top, 3);
  emit_fill("bottom", bottom, 4);  // the second write of y is not its birth
  emit_copy("z", y, z);
  pb.emit("update", {.reads = {x, z, result}, .writes = {z, result}}, [=, this](const Bindings& b) {
    *b.out(result).as<float>() += b.in(x).as<float>()[5] * b.in(z).as<float>()[5];
  });
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan, {.disk_readers = 1, .debug = kNan});
  for (int i = 1; i <= 3; ++i) {
    runner.run("p");
    EXPECT_EQ(*runner.view(result).as<float>(), static_cast<float>(6 * i));
  }
}

TEST_F(RunnerDebugTest, GuardsNameTheInstructionThatWritesOneElementTooFar) {
  const Buffer x = temp("x", 5), y = temp("y", 5);
  emit_fill("fine", y, 1);
  pb.emit("over", {.reads = {y}, .writes = {x}},
          [x](const Bindings& b) { std::fill_n(b.out(x).as<float>(), 6, 2.0f); });
  emit_copy("take", x, result);
  EXPECT_EQ(run(kPlain, 64), 2);
  EXPECT_FAILS(run(kGuards, 64), ErrorCode::internal, "over wrote behind the end of x (20 bytes)");
}

TEST_F(RunnerDebugTest, GuardsWatchPersistentBuffersAndViews) {
  const Buffer w = pb.persistent("w", {4, 4}, DType::f32, Role::weights);
  const Buffer last = pb.rows(w, 3, 1);
  pb.emit("over", {.writes = {last}},
          [last](const Bindings& b) { b.out(last).as<float>()[4] = 0; });
  EXPECT_FAILS(run(kGuards, 4), ErrorCode::internal, "over wrote behind the end of w (64 bytes)");
}

TEST_F(RunnerDebugTest, GuardsAcceptRightPrograms) {
  // Neighbours fill their memory to the last byte, again and again, at places used before.
  for (int i = 0; i < 20; ++i) {
    const Buffer a = temp("a", 1 + i % 7), b = temp("b", 3 + i % 5);
    emit_fill("a", a, 1);
    emit_fill("b", b, 2);
    emit_copy("take", a, result);
  }
  EXPECT_EQ(run(kGuards, 64), 1);
}

TEST_F(RunnerDebugTest, BuffersOfNoBytesHaveNoGuard) {
  const Buffer nothing = temp("nothing", 0);
  const Buffer none = pb.persistent("none", {0, 8}, DType::f32, Role::input);
  emit_fill("result", result, 9);
  emit_fill("empty", nothing, 1);
  emit_fill("empty", none, 1);
  EXPECT_EQ(run(kGuards, 64), 9);  // offset 0, where the empty one would lie, is the result's
}

TEST_F(RunnerDebugTest, NanCheckNamesInstructionElementAndBuffer) {
  const Buffer x = temp("x");
  emit_fill("fine", x, 1);
  {
    const auto scope = pb.scope("blocks.2");
    pb.emit("divide", {.reads = {x}, .writes = {x}}, [x](const Bindings& b) {
      b.out(x).as<float>()[17] = std::numeric_limits<float>::quiet_NaN();
    });
  }
  emit_copy("take", x, result);
  EXPECT_EQ(run(kPlain), 1);
  EXPECT_FAILS(run(kNan), ErrorCode::internal, "blocks.2.divide wrote NaN to element 17 of x [64]");
}

TEST_F(RunnerDebugTest, NanCheckKnowsTheHalfFormatsAndInfinity) {
  struct Case {
    DType dtype;
    std::uint16_t infinity, nan;
  };
  for (const Case& c : {Case{DType::bf16, 0x7f80, 0x7f81}, Case{DType::f16, 0xfc00, 0xfc01}}) {
    for (const std::uint16_t bits : {c.infinity, c.nan}) {
      ProgramSet other;
      ProgramBuilder p(other, "p");
      const Buffer h = p.persistent("h", {1}, c.dtype, Role::output);
      p.emit("write", {.writes = {h}},
             [h, bits](const Bindings& b) { *b.out(h).as<std::uint16_t>() = bits; });
      const MemoryPlan plan = plan_memory(other);
      Runner runner(other, plan, {.disk_readers = 1, .debug = kNan});
      EXPECT_EQ(test::error_of([&] { runner.run(0); }).has_value(), bits == c.nan)
          << name_of(c.dtype) << " " << bits;
    }
  }
}

TEST_F(RunnerDebugTest, LooksAtMemoryOnlyBetweenInstructions) {
  const MemoryPlan plan = plan_memory(set, {.guard_bytes = 64});
  const auto make = [&](const RunnerDebug& debug) { Runner(set, plan, {.debug = debug}); };
  EXPECT_FAILS(make({.poison = true}), ErrorCode::internal, "need recorded or random order");
  EXPECT_FAILS(make({.check_nan = true}), ErrorCode::internal, "need recorded or random order");
  EXPECT_FAILS(make({.check_guards = true}), ErrorCode::internal, "recorded order");
  EXPECT_FAILS(make({.order = Order::random, .check_guards = true}), ErrorCode::internal,
               "recorded order");
  EXPECT_FAILS(run(kGuards, 0), ErrorCode::internal, "no guard bytes");
}

}  // namespace
}  // namespace ballast
