// A teacher that the processors compute beside a student on the GPU.

#include <gtest/gtest.h>

#include "memory/gpu.h"
#include "tests/train/tiny_pair.h"
#include "train/device_choice.h"

namespace ballast::train {
namespace {

// Planned for a GPU, which planning needs none of.
student::PairRequest gpu_request(tiny::TinyPair& pair) {
  student::PairRequest r = pair.request;
  r.backend = {.device = Device::cuda};
  r.host_threads = 2;
  r.profile = *find_profile("h200");
  r.budget.gpu = Bytes{2u << 30};
  return r;
}

std::uint64_t persistent_bytes(const ProgramSet& set, Tier tier, Role role) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < set.buffers.size(); ++i) {
    const BufferSpec& s = set.buffers[i];
    if (s.root.id == i && s.tier == tier && s.role == role && s.program == kPersistent) {
      bytes += s.bytes;
    }
  }
  return bytes;
}

TEST(TeacherOnProcessors, NothingOfItIsOnTheGpu) {
  tiny::TinyPair pair;
  student::PairRequest r = gpu_request(pair);
  r.place = student::TeacherPlace::processors;
  const auto outcome = fit_pair(r);
  const auto& planned = std::get<student::PlannedPair>(outcome);
  ASSERT_TRUE(planned.job.teacher_on_processors);
  EXPECT_EQ(planned.set.backend.threads, 2);
  const auto student =
      static_cast<std::uint64_t>(4 * (parameter_count(tiny::tiny_student()) + 4 * 3 + 4));
  EXPECT_EQ(persistent_bytes(planned.set, Tier::device, Role::weights), student);
  std::uint64_t stored = 0;
  for (const WeightGroup& g : r.teacher) {
    for (const StoredTensor& t : g.tensors) stored += t.data.extent.bytes;
  }
  EXPECT_EQ(persistent_bytes(planned.set, Tier::host, Role::weights), stored);
  for (const Program& p : planned.set.programs) {
    for (const Instruction& i : p.instructions) {
      if (i.lane != Lane::host) continue;
      for (const auto* touched : {&i.reads, &i.writes}) {
        for (const Buffer b : *touched) EXPECT_NE(planned.set.spec(b).tier, Tier::device) << i.name;
      }
    }
  }
  EXPECT_NE(text_of(planned).find("computed by the CPU"), std::string::npos);
}

// --teacher_on_cpu and --teacher_device_strategy disk say where its weights are: with all the room
// of a GPU none of its groups stays there, they pass through.
TEST(TeacherElsewhere, NoneOfItStaysOnTheGpu) {
  tiny::TinyPair pair;
  student::PairRequest r = gpu_request(pair);
  const auto planned = [&](student::TeacherPlace place) {
    r.place = place;
    auto outcome = fit_pair(r);
    return std::move(std::get<student::PlannedPair>(outcome));
  };
  const auto weights = [](const student::PlannedPair& p) {
    return persistent_bytes(p.set, Tier::device, Role::weights);
  };
  const student::PlannedPair resident = planned(student::TeacherPlace::device);
  for (const auto place : {student::TeacherPlace::host, student::TeacherPlace::disk}) {
    const student::PlannedPair p = planned(place);
    EXPECT_GT(p.job.teacher_policy.slots, 0);
    EXPECT_EQ(p.job.teacher_policy.resident_groups, 0);
    EXPECT_EQ(text_of(p).find("groups stay"), std::string::npos) << text_of(p);
    EXPECT_LT(weights(p), weights(resident));
  }
  // Left to the plan, what the budget has room for stays.
  r.budget.gpu = Bytes{resident.needed(Tier::device).count - 1};
  EXPECT_GT(planned(student::TeacherPlace::automatic).job.teacher_policy.resident_groups, 0);
  // On the CPU it is the same memory: what fits is not copied.
  r.backend = {.device = Device::cpu, .threads = 2};
  r.budget = pair.request.budget;
  EXPECT_GT(planned(student::TeacherPlace::host).job.teacher_policy.resident_groups, 0);
}

TEST(TeacherOnProcessors, IsPredictedByTheirRatesAndTakenWhereNothingFasterFits) {
  tiny::TinyPair pair;
  student::PairRequest r = gpu_request(pair);
  r.profile.host_gemm_flops = r.profile.host_attention_flops = 1e8;
  r.profile.host_memory_bandwidth = 1e8;
  const auto planned = [](const student::PairRequest& request) {
    return std::get<student::PlannedPair>(fit_pair(request));
  };
  EXPECT_FALSE(planned(r).job.teacher_on_processors);
  r.place = student::TeacherPlace::processors;
  const student::PlannedPair slow = planned(r);
  r.profile.host_gemm_flops = r.profile.host_attention_flops = 2e8;
  r.profile.host_memory_bandwidth = 2e8;
  const student::PlannedPair quick = planned(r);
  EXPECT_NEAR(slow.seconds_of(student::Pair::kBoth) / quick.seconds_of(student::Pair::kBoth), 2,
              0.05);
  // The least that will do is too little for any other place.
  std::uint64_t no = 0, yes = quick.needed(Tier::device).count;
  while (yes - no > 4096) {
    r.budget.gpu = Bytes{(no + yes) / 2};
    (std::holds_alternative<student::PlannedPair>(fit_pair(r)) ? yes : no) = r.budget.gpu.count;
  }
  r.budget.gpu = Bytes{yes};
  r.place = student::TeacherPlace::automatic;
  EXPECT_TRUE(planned(r).job.teacher_on_processors);
}

class GpuTeacherOnProcessors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_is_usable()) GTEST_SKIP() << "this build or machine has no usable GPU";
    open_gpu();
  }
};

TEST_F(GpuTeacherOnProcessors, AnswersWithTheBitsOfACpuAndTeachesAStudentOnTheGpu) {
  tiny::TinyPair on_cpu;
  tiny::PairRun cpu(on_cpu);
  for (const MemoryPolicy& policy :
       {MemoryPolicy{}, MemoryPolicy{.slots = 2, .home = WeightHome::disk}}) {
    tiny::TinyPair beside(policy);
    beside.request.backend = {.device = Device::cuda, .threads = 2};
    beside.request.job.teacher_on_processors = true;
    tiny::PairRun gpu(beside);
    for (std::int64_t n = 0; n < 2; ++n) {
      if (policy == MemoryPolicy{}) {
        cpu.step(n);
        cpu.update(n);
      }
      gpu.step(n);
      gpu.update(n);
    }
    for (std::size_t i = 0; i < gpu.pair().teacher().samples.size(); ++i) {
      EXPECT_TRUE(tiny::same_bits(cpu.get(cpu.pair().teacher().samples[i].output),
                                  gpu.get(gpu.pair().teacher().samples[i].output)));
    }
    EXPECT_NEAR(gpu.loss, cpu.loss, 1e-4 * cpu.loss);
    EXPECT_EQ(gpu.runner().high_water(Tier::device), gpu.plan().peak_of(Tier::device));
    EXPECT_EQ(gpu.runner().high_water(Tier::host), gpu.plan().peak_of(Tier::host));
  }
}

}  // namespace
}  // namespace ballast::train
