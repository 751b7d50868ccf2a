#include "infer/student_sampler.h"

#include "plan/budget_flag.h"
#include "tests/support/errors.h"

namespace ballast::infer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct RecordedStudent {
  explicit RecordedStudent(Backend backend) {
    set.backend = backend;
    set.executable = false;
    student::Job job = {.config = {.hidden_size = 16,
                                   .depth = 2,
                                   .num_heads = 2,
                                   .num_channels = 3,
                                   .image_size = 24,
                                   .patch_size = 4,
                                   .text_max_length = 7,
                                   .text_dim = 10,
                                   .teacher_channels = 4},
                        .trains = false};
    if (backend.device == Device::cuda) job.activation = job.residual = DType::bf16;
    const student::Student student(set, std::move(job));
    profile = *find_profile("rtx4090");
    memory = plan_student(set, student, profile);
  }

  ProgramSet set;
  MachineProfile profile;
  StudentMemory memory;
};

TEST(StudentMemory, OnAGpuHoldsItsContext) {
  const RecordedStudent s({.device = Device::cuda, .sm = 89});
  const Bytes arena = s.memory.plan.peak_of(Tier::device);
  EXPECT_GE(s.memory.device, arena + s.profile.library_bytes);
  EXPECT_GT(s.memory.host, s.memory.plan.peak_of(Tier::host) + 448_MiB);
  const auto fits = [&](Bytes gpu, Bytes ram) {
    require_fit(s.memory, Device::cuda, {.gpu = gpu, .host = ram, .disk = {}}, "drawing with s");
  };
  fits(s.memory.device, s.memory.host);
  // The arena alone would fit.
  const auto error = test::error_of([&] { fits(arena, s.memory.host); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::refused);
  EXPECT_THAT(error->what(), HasSubstr("drawing with s does not fit: it needs "));
  EXPECT_THAT(error->what(), HasSubstr("of GPU memory ("));
  EXPECT_THAT(error->what(), Not(HasSubstr("RAM")));
  ASSERT_EQ(error->advice().size(), 1u);
  EXPECT_EQ(error->advice()[0].change, budget_flag(Tier::device, megabytes_for(s.memory.device)));
  EXPECT_FAILS(fits(arena, 1_MiB), ErrorCode::refused, "of RAM (1.049 MB allowed)");
}

TEST(StudentMemory, OnTheCpuIsRamWithTheProcess) {
  const RecordedStudent s({.device = Device::cpu, .threads = 2});
  const Bytes arenas = s.memory.plan.peak_of(Tier::device) + s.memory.plan.peak_of(Tier::host);
  EXPECT_GT(s.memory.host, arenas + 2_MiB);
  const auto fits = [&](Bytes gpu, Bytes ram) {
    require_fit(s.memory, Device::cpu, {.gpu = gpu, .host = ram, .disk = {}}, "drawing with s");
  };
  fits(s.memory.host, s.memory.host);
  const auto error = test::error_of([&] { fits(arenas, arenas); });
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what(), Not(HasSubstr("GPU")));
  EXPECT_EQ(error->advice()[0].change, budget_flag(Tier::host, megabytes_for(s.memory.host)));
  EXPECT_FAILS(fits(Bytes{1}, s.memory.host), ErrorCode::refused, "RAM (compute share, --gpu)");
}

}  // namespace
}  // namespace ballast::infer
