#include "train/step_programs.h"

#include "plan/program_builder.h"
#include "tests/support/errors.h"

namespace ballast::train {
namespace {

struct ListedStep {
  ListedStep() {
    set.backend = {.threads = 1};
    for (const char* name : {"zero", "step", "step.other", "update", "preview"}) {
      ProgramBuilder pb(set, name);
      const Buffer x = pb.temp("x", {1}, DType::f32);
      pb.emit("write", {.writes = {x}}, [x](const Bindings& b) { *b.out(x).as<float>() = 1; });
    }
    plan = plan_memory(set);
    runner.emplace(set, plan);
  }
  void run(const char* program) { step.run(*runner, program); }

  ProgramSet set;
  MemoryPlan plan;
  std::optional<Runner> runner;
  // Two kinds of steps.
  StepPrograms step{{{{"zero", 1, false}, {"step", 2}, {"update", 1, false}},
                     {{"zero", 1, false}, {"step.other", 1}, {"update", 1.5, false}}}};
};

TEST(StepPrograms, RunWhatIsListed) {
  ListedStep s;
  for (int n = 0; n < 3; ++n) {
    s.step.begin_step();
    s.run("zero");
    for (int pass = 0; pass < 3; ++pass) s.run("step");  // by the samples of a step
    s.run("step.other");
    s.run("update");
    s.run("update");
  }
}

TEST(StepPrograms, RefuseWhatWasNotPredicted) {
  ListedStep s;
  s.step.begin_step();
  EXPECT_FAILS(s.run("preview"), ErrorCode::internal, "a step runs preview, which its plan does");
  s.run("zero");
  EXPECT_FAILS(s.run("zero"), ErrorCode::internal, "a step runs zero 2 times, its plan lists 1");
  s.step.begin_step();
  s.run("zero");
}

}  // namespace
}  // namespace ballast::train
