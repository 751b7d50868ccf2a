#include "plan/lifetimes.h"

#include <gtest/gtest.h>

#include "plan/program_builder.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

class LifetimesTest : public testing::Test {
 protected:
  Buffer temp(std::string_view name) { return pb.temp(name, {4, 4}, DType::f32); }
  void emit(std::string_view name, std::vector<Buffer> reads, std::vector<Buffer> writes) {
    pb.emit(name, {.reads = std::move(reads), .writes = std::move(writes)}, [](const Bindings&) {});
  }
  Lifetime of(Buffer b) const { return lifetimes(set, 0)[b.id]; }

  ProgramSet set;
  ProgramBuilder pb{set, "step"};
};

TEST_F(LifetimesTest, ReachFromTheFirstWriteToTheLastTouch) {
  const Buffer a = temp("a"), b = temp("b"), unused = temp("unused");
  emit("0", {}, {a});
  emit("1", {a}, {b});
  emit("2", {b}, {});
  emit("3", {a}, {b});
  EXPECT_EQ(of(a).first, 0u);
  EXPECT_EQ(of(a).last, 3u);
  EXPECT_EQ(of(a).uses, 3u);
  EXPECT_EQ(of(b).first, 1u);
  EXPECT_EQ(of(b).last, 3u);  // a write is a touch: nobody reads it any more
  EXPECT_EQ(of(b).uses, 3u);
  EXPECT_EQ(of(unused).first, Lifetime::kNever);
  EXPECT_EQ(of(unused).uses, 0u);
}

TEST_F(LifetimesTest, CountAnInPlaceUpdateAsReadAndWrite) {
  const Buffer a = temp("a");
  emit("make", {}, {a});
  emit("scale", {a}, {a});
  EXPECT_EQ(of(a).uses, 3u);
}

TEST_F(LifetimesTest, OfViewsBelongToTheRoot) {
  const Buffer a = temp("a");
  const Buffer top = pb.rows(a, 0, 2), flat = pb.reshape(pb.rows(a, 2, 2), {8});
  emit("0", {}, {top});
  emit("1", {}, {flat});
  emit("2", {a}, {});
  emit("3", {flat}, {});
  EXPECT_EQ(of(a).first, 0u);
  EXPECT_EQ(of(a).last, 3u);
  EXPECT_EQ(of(a).uses, 4u);
  EXPECT_EQ(of(top).first, Lifetime::kNever);
}

TEST_F(LifetimesTest, RefuseReadingBeforeWriting) {
  const Buffer a = temp("a"), b = temp("b");
  emit("gelu", {a}, {b});
  EXPECT_FAILS(lifetimes(set, 0), ErrorCode::internal, "gelu reads a before it was written");
}

TEST_F(LifetimesTest, RefuseUpdatingWhatWasNeverWritten) {
  const Buffer a = temp("a");
  emit("accumulate", {a}, {a});
  EXPECT_FAILS(lifetimes(set, 0), ErrorCode::internal, "accumulate reads a before");
}

TEST_F(LifetimesTest, LetPersistentBuffersBeReadAtOnce) {
  const Buffer w = pb.persistent("w", {4}, DType::f32, Role::weights);
  emit("use", {w}, {});
  EXPECT_EQ(of(w).uses, 1u);
}

TEST_F(LifetimesTest, RefuseTemporariesOfAnotherProgram) {
  const Buffer a = temp("a");
  emit("make", {}, {a});
  ProgramBuilder other(set, "update");
  other.emit("adamw", {.reads = {pb.rows(a, 0, 1)}}, [](const Bindings&) {});
  EXPECT_FAILS(lifetimes(set, 1), ErrorCode::internal,
               "adamw of program update touches a, a temporary of program step");
}

}  // namespace
}  // namespace ballast
