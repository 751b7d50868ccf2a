// A teacher that the processors compute beside a student on the GPU.

#include <gtest/gtest.h>

#include "fit/advice.h"
#include "memory/gpu.h"
#include "tests/train/tiny_pair.h"
#include "train/run/device_choice.h"

namespace ballast::train {
namespace {

// Planned for a GPU, which planning needs none of.
fit::Request gpu_request(tiny::TinyPair& pair) {
  fit::Request r = pair.request;
  r.backend = {.device = Device::cuda};
  student::job_of(r).gpu = true;
  student::job_of(r).host_threads = 2;
  r.profile = student::job_of(r).profile = *find_profile("h200");
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
  fit::Request r = gpu_request(pair);
  student::job_of(r).placement = student::TeacherPlacement::processors;
  const auto outcome = fit::find_plan(r);
  const auto& planned = std::get<fit::PlannedRun>(outcome);
  ASSERT_TRUE(tiny::pair_of(planned).teacher_on_processors);
  EXPECT_EQ(planned.set.backend.threads, 2);
  const auto student =
      static_cast<std::uint64_t>(4 * (parameter_count(tiny::tiny_student()) + 4 * 3 + 4));
  EXPECT_EQ(persistent_bytes(planned.set, Tier::device, Role::weights), student);
  std::uint64_t stored = 0;
  for (const WeightGroup& g : student::job_of(r).teacher) {
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
  EXPECT_NE(text_of(tiny::pair_of(planned)).find("computed by the CPU"), std::string::npos);
}

// --teacher_on_cpu and --teacher_device_strategy disk say where its weights are: with all the room
// of a GPU none of its groups stays there, they pass through.
TEST(TeacherElsewhere, NoneOfItStaysOnTheGpu) {
  tiny::TinyPair pair;
  fit::Request r = gpu_request(pair);
  const auto planned = [&](student::TeacherPlacement placement) {
    student::job_of(r).placement = placement;
    auto outcome = fit::find_plan(r);
    return std::move(std::get<fit::PlannedRun>(outcome));
  };
  const auto weights = [](const fit::PlannedRun& p) {
    return persistent_bytes(p.set, Tier::device, Role::weights);
  };
  const fit::PlannedRun resident = planned(student::TeacherPlacement::device);
  for (const auto placement : {student::TeacherPlacement::host, student::TeacherPlacement::disk}) {
    const fit::PlannedRun p = planned(placement);
    EXPECT_GT(p.policy.stream().slots, 0);
    EXPECT_EQ(p.policy.stream().resident_groups, 0);
    const std::string text = text_of(tiny::pair_of(p));
    EXPECT_EQ(text.find("resident"), std::string::npos) << text;
    EXPECT_LT(weights(p), weights(resident));
  }
  // Left to the plan, what the budget has room for stays.
  r.budget.gpu = Bytes{resident.needed(Tier::device).count - 1};
  EXPECT_GT(planned(student::TeacherPlacement::automatic).policy.stream().resident_groups, 0);
  // On the CPU it is the same memory: what fits is not copied.
  r.backend = {.device = Device::cpu, .threads = 2};
  student::job_of(r).gpu = false;
  r.budget = pair.request.budget;
  EXPECT_EQ(planned(student::TeacherPlacement::host).policy.stream().slots, 0);
  EXPECT_GT(planned(student::TeacherPlacement::disk).policy.stream().resident_groups, 0);
}

TEST(TeacherOnProcessors, IsPredictedByTheirRatesAndTakenWhereNothingFasterFits) {
  tiny::TinyPair pair;
  fit::Request r = gpu_request(pair);
  r.profile.host_gemm_flops = r.profile.host_attention_flops = 1e8;
  r.profile.host_memory_bandwidth = 1e8;
  student::job_of(r).profile = r.profile;
  const auto planned = [](const fit::Request& request) {
    return std::get<fit::PlannedRun>(fit::find_plan(request));
  };
  const auto on_processors = [&](const fit::Request& request) {
    return tiny::pair_of(planned(request)).teacher_on_processors;
  };
  EXPECT_FALSE(on_processors(r));
  student::job_of(r).placement = student::TeacherPlacement::processors;
  const fit::PlannedRun slow = planned(r);
  r.profile.host_gemm_flops = r.profile.host_attention_flops = 2e8;
  r.profile.host_memory_bandwidth = 2e8;
  student::job_of(r).profile = r.profile;
  const fit::PlannedRun quick = planned(r);
  EXPECT_NEAR(slow.seconds_of(student::Pair::kBoth) / quick.seconds_of(student::Pair::kBoth), 2,
              0.05);
  // The least that will do is too little for any other place.
  std::uint64_t no = 0, yes = quick.needed(Tier::device).count;
  while (yes - no > 4096) {
    r.budget.gpu = Bytes{(no + yes) / 2};
    (std::holds_alternative<fit::PlannedRun>(fit::find_plan(r)) ? yes : no) = r.budget.gpu.count;
  }
  r.budget.gpu = Bytes{yes};
  student::job_of(r).placement = student::TeacherPlacement::automatic;
  EXPECT_TRUE(on_processors(r));
}

// Host memory that does not hold the teacher keeps as much of it as it can; the rest is read in
// every step. Where there is no plan, what is told to be short is enough.
TEST(TeacherOnProcessors, StreamsFromItsFileWhereHostMemoryIsShort) {
  tiny::TinyPair pair;
  fit::Request r = gpu_request(pair);
  student::FitJob& job = student::job_of(r);
  job.placement = student::TeacherPlacement::processors;
  job.pair.teacher = *wan::find_preset("wan2.1-t2v-1.3b");
  job.pair.student.config = {.hidden_size = 256, .depth = 2, .num_heads = 4, .image_size = 256};
  job.teacher = planned_groups(job.pair.teacher, DType::bf16);
  const auto groups = [&](Bytes host) {  // that stay; -1: there is no plan
    r.budget.host = host;
    const auto outcome = fit::find_plan(r);
    const auto* planned = std::get_if<fit::PlannedRun>(&outcome);
    if (!planned) return -1;
    EXPECT_LE(planned->needed(Tier::host), host);
    const student::PairJob chosen = tiny::pair_of(*planned);
    EXPECT_TRUE(chosen.teacher_on_processors);
    return chosen.teacher_policy.stream().slots == 0
               ? job.group_count()
               : chosen.teacher_policy.stream().resident_groups;
  };
  r.budget.host = Bytes{8'000'000'000};
  const Bytes whole = std::get<fit::PlannedRun>(fit::find_plan(r)).needed(Tier::host);
  EXPECT_EQ(groups(whole), job.group_count());
  const int many = groups(whole - Bytes{500'000'000}), few = groups(whole - Bytes{2'000'000'000});
  EXPECT_LT(many, job.group_count() - 3);
  EXPECT_GT(many, job.group_count() / 2);
  EXPECT_LT(few, many / 2);
  EXPECT_GE(few, 0);
  ASSERT_EQ(groups(whole - Bytes{3'000'000'000}), -1);
  const auto refused = std::get<Refusal>(fit::find_plan(r));
  for (const fit::Change& c : fit::larger_budgets(refused, false, r.budget)) c.apply(r);
  EXPECT_GE(groups(r.budget.host), 0);
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
       {MemoryPolicy{},
        MemoryPolicy{.streaming = Streaming{.slots = 2, .stream_from = StreamSource::disk}}}) {
    tiny::TinyPair beside(policy);
    beside.request.backend = {.device = Device::cuda, .threads = 2};
    student::job_of(beside.request).pair.teacher_on_processors = true;
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
