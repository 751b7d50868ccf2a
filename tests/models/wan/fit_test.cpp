#include "models/wan/fit.h"

#include <gtest/gtest.h>

#include "models/wan/job_needs.h"
#include "models/wan/weights.h"

namespace ballast::wan {
namespace {

struct Case {
  Mode mode;
  const char* machine;
  Bytes gpu, ram;
};

FitRequest request(const Case& c, const LatentSize& size) {
  FitRequest r;
  r.profile = *find_profile(c.machine);
  r.backend = {.device = Device::cuda, .threads = 1, .sm = r.profile.sm};
  r.budget = {.gpu = c.gpu, .host = c.ram, .disk = {}};
  r.job.config = *find_preset("wan2.2-t2v-a14b");
  r.job.mode = c.mode;
  r.job.precision = precision_on(Device::cuda);
  r.job.noising = c.mode == Mode::infer ? Noising::given : Noising::recorded;
  r.job.record_update = c.mode != Mode::infer;
  r.job.max_grad_norm = 1;
  r.job.batches = {{.latents = {size}, .timestep_rows = 1}};
  r.experts = {planned_groups(r.job.config, DType::bf16)};
  return r;
}

// A plan of a 14B model is to take less than a second; work is counted here, as time depends on who
// else is there. A recording of the whole model has 45,000 to 75,000 instructions.
TEST(Fit, RecordsFewInstructionsForAnAnswer) {
  const LatentSize small = {.frames = 7, .height = 64, .width = 64};
  const LatentSize large = {.frames = 21, .height = 60, .width = 104};
  const auto recorded_for = [](const Case& c, const LatentSize& size) {
    const std::uint64_t before = recorded_instructions();
    EXPECT_TRUE(std::holds_alternative<PlannedRun>(fit(request(c, size))));
    return recorded_instructions() - before;
  };
  EXPECT_LE(recorded_for({Mode::lora, "rtx4090", 24_GB, 32_GB}, large), 200'000u);
  EXPECT_LE(recorded_for({Mode::lora, "rtx4090", 8_GB, 8_GB}, small), 230'000u);
  EXPECT_LE(recorded_for({Mode::full, "h200", 139_GB, 400_GB}, large), 500'000u);
}

}  // namespace
}  // namespace ballast::wan
