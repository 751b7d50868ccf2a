#include "infer/student_sampler.h"

#include "plan/budget_flag.h"
#include "tests/support/errors.h"

namespace ballast::infer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct PlannedStudent {
  explicit PlannedStudent(Backend backend) : device(backend.device) {
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
    job.precision = precision_on(device);
    request = student_request(job, 20, backend, *find_profile("rtx4090"), {});
    run = within(1_GiB, 1_GiB);
    arena = run.plan.peak_of(Tier::device);
    gpu = run.needed(Tier::device);
    ram = run.needed(Tier::host) + (device == Device::cpu ? gpu : Bytes{});
  }

  fit::PlannedRun within(Bytes most_gpu, Bytes most_ram) const {
    fit::Request r = request;
    r.budget = {.gpu = most_gpu, .host = most_ram, .disk = {}};
    return require_plan(student_part(r, "out/s"));
  }

  Device device;
  fit::Request request;
  fit::PlannedRun run;
  Bytes arena, gpu, ram;  // ram: of everything on the CPU
};

TEST(StudentMemory, OnAGpuHoldsItsContext) {
  const PlannedStudent s({.device = Device::cuda, .sm = 89});
  EXPECT_GE(s.gpu, s.arena + s.request.profile.library_bytes);
  EXPECT_GT(s.ram, s.run.plan.peak_of(Tier::host) + 448_MiB);
  EXPECT_GT(s.run.seconds_per_step(), 19 * s.run.seconds_of(student::Student::kPredict));
  s.within(s.gpu, s.ram);
  // The arena alone would fit.
  const auto error = test::error_of([&] { s.within(s.arena, s.ram); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::refused);
  EXPECT_THAT(error->what(), HasSubstr("does not fit: "));
  EXPECT_THAT(error->what(), HasSubstr("more GPU memory needed"));
  EXPECT_THAT(error->what(), HasSubstr("out/s sample: one latent of 6 x 6, 20 steps"));
  EXPECT_THAT(error->what(), Not(HasSubstr("more RAM needed")));
  ASSERT_EQ(error->advice().size(), 1u);
  EXPECT_EQ(error->advice()[0].change, budget_flag(Tier::device, megabytes_for(s.gpu)));
  EXPECT_THAT(error->advice()[0].effect, HasSubstr("fits: "));
  const auto both = test::error_of([&] { s.within(s.arena, 1_MiB); });
  ASSERT_TRUE(both.has_value());
  EXPECT_THAT(both->what(), HasSubstr("more RAM needed"));
  EXPECT_EQ(both->advice().at(0).change, budget_flag(Tier::device, megabytes_for(s.gpu)) + " " +
                                             budget_flag(Tier::host, megabytes_for(s.ram)));
}

TEST(StudentMemory, OnTheCpuIsRamWithTheProcess) {
  const PlannedStudent s({.device = Device::cpu, .threads = 2});
  const Bytes arenas = s.arena + s.run.plan.peak_of(Tier::host);
  EXPECT_GT(s.ram, arenas + 2_MiB);
  s.within(s.ram, s.ram);
  const auto error = test::error_of([&] { s.within(arenas, arenas); });
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what(), Not(HasSubstr("GPU")));
  ASSERT_EQ(error->advice().size(), 1u);
  EXPECT_EQ(error->advice()[0].change, budget_flag(Tier::host, megabytes_for(s.ram)));
  EXPECT_FAILS(s.within(Bytes{1}, s.ram), ErrorCode::refused, "RAM (compute share, --gpu)");
}

}  // namespace
}  // namespace ballast::infer
