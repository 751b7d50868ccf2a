#include "plan/predict.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "core/to_size.h"
#include "plan/program_builder.h"
#include "tests/plan/random_program.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace ballast::predict_test {
namespace {

constexpr auto kNothing = [](const Bindings&) {};

// Round numbers: 100 bytes take one second to upload, ten from disk, and so on.
MachineProfile slow_machine() {
  return {.name = "slow",
          .description = "",
          .gemm_flops = 1000,
          .attention_flops = 500,
          .attention_backward_flops = 250,
          .memory_bandwidth = 400,
          .upload_bandwidth = 100,
          .download_bandwidth = 50,
          .disk_bandwidth = 10,
          .launch_seconds = 0.25,
          .device_memory = {},
          .library_bytes = {}};
}

TEST(Profile, IsFoundByName) {
  const auto h200 = find_profile("h200");
  ASSERT_TRUE(h200.has_value());
  EXPECT_EQ(h200->name, "h200");
  EXPECT_FALSE(h200->estimate);
  EXPECT_FALSE(find_profile("h2000").has_value());
  EXPECT_FALSE(find_profile("").has_value());
}

TEST(Profile, EveryBundledOneIsComplete) {
  std::set<std::string> names;
  for (const MachineProfile& p : bundled_profiles()) {
    EXPECT_TRUE(names.insert(p.name).second) << p.name << " is there twice";
    EXPECT_THAT(bundled_names(), ::testing::HasSubstr(p.name));
    EXPECT_EQ(p.device, Device::cuda) << p.name;
    EXPECT_THAT(p.description, ::testing::StartsWith("NVIDIA ")) << p.name;
    EXPECT_EQ(p.estimate, p.name != "h200") << p.name;
    EXPECT_TRUE(std::set({80, 86, 89, 90, 100, 120}).contains(p.sm)) << p.name;
    EXPECT_GE(p.device_memory, 10_GiB) << p.name;
    EXPECT_LE(p.device_memory, 180_GiB) << p.name;
    EXPECT_EQ(p.library_bytes, find_profile("h200")->library_bytes) << p.name;
    EXPECT_GE(p.gemm_flops, 50e12) << p.name;
    EXPECT_LE(p.gemm_flops, 1500e12) << p.name;
    // Attention is slower than products, its backward pass slower still.
    EXPECT_LT(p.attention_flops, p.gemm_flops) << p.name;
    EXPECT_GT(p.attention_flops, 0.8 * p.gemm_flops) << p.name;
    EXPECT_LT(p.attention_backward_flops, p.attention_flops) << p.name;
    EXPECT_GT(p.attention_backward_flops, 0.6 * p.gemm_flops) << p.name;
    EXPECT_GE(p.memory_bandwidth, 0.4e12) << p.name;
    EXPECT_LE(p.memory_bandwidth, 8e12) << p.name;
    for (const double link : {p.upload_bandwidth, p.download_bandwidth}) {
      EXPECT_GE(link, 26e9) << p.name;
      EXPECT_LT(link, p.memory_bandwidth / 4) << p.name;
    }
    EXPECT_LE(p.disk_bandwidth, p.upload_bandwidth / 5) << p.name;
    EXPECT_GE(p.disk_bandwidth, 3e9) << p.name;
    EXPECT_GT(p.launch_seconds, 1e-6) << p.name;
    EXPECT_LT(p.launch_seconds, 1e-5) << p.name;
  }
  for (const char* name : {"h200", "a100", "rtx3090", "rtx4090", "rtx5090", "b200", "rtx5080",
                           "rtx3080", "rtx4070ti", "l40s", "a6000", "gh200"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(Profile, AReleaseHasCodeForEveryBundledOne) {
  const std::string script = test::read_whole(test::source_path("scripts/release.sh"));
  std::smatch list;
  ASSERT_TRUE(std::regex_search(script, list, std::regex("architectures=\"([^\"]*)\"")));
  const std::string all = ";" + list[1].str() + ";";
  for (const MachineProfile& p : bundled_profiles()) {
    EXPECT_TRUE(all.find(fmt::format(";{}-real;", p.sm)) != all.npos ||
                all.find(fmt::format(";{};", p.sm)) != all.npos)
        << p.name << " needs sm_" << p.sm << " of " << all;
  }
}

TEST(Profile, OfAGpuIsThatOfTheNearestOne) {
  const auto nearest = [](const char* gpu, int sm) {
    const MachineProfile p = nearest_profile(gpu, sm);
    EXPECT_TRUE(p.estimate) << gpu;
    EXPECT_EQ(p.sm, sm);
    return p.name;
  };
  EXPECT_EQ(nearest("NVIDIA H200", 90), "h200");
  EXPECT_EQ(nearest("NVIDIA H100 80GB HBM3", 90), "h200");
  EXPECT_EQ(nearest("NVIDIA A100-SXM4-80GB", 80), "a100");
  EXPECT_EQ(nearest("NVIDIA GeForce RTX 3090 Ti", 86), "rtx3090");
  EXPECT_EQ(nearest("NVIDIA L40S", 89), "l40s");
  EXPECT_EQ(nearest("NVIDIA L4", 89), "rtx4090");
  EXPECT_EQ(nearest("NVIDIA RTX A6000", 86), "a6000");
  EXPECT_EQ(nearest("NVIDIA A10", 86), "rtx3090");
  EXPECT_EQ(nearest("NVIDIA GeForce RTX 4070 Ti", 89), "rtx4070ti");
  EXPECT_EQ(nearest("NVIDIA GH200 480GB", 90), "gh200");
  EXPECT_EQ(nearest("NVIDIA GeForce RTX 5090", 120), "rtx5090");
  EXPECT_EQ(nearest("NVIDIA B200", 100), "b200");
  EXPECT_EQ(nearest("NVIDIA B300", 103), "b200");
  EXPECT_EQ(nearest("NVIDIA GeForce RTX 5070", 120), "rtx5090");
  EXPECT_EQ(nearest("", 121), "rtx5090");
}

TEST(Profile, SaysWhereItsRatesAreEstimates) {
  MachineProfile p = slow_machine();
  p.description = "a machine";
  p.estimate = true;
  EXPECT_EQ(machine_text(p), "a machine (rates are estimates)");
  p.estimate = false;
  EXPECT_EQ(machine_text(p), "a machine");
}

TEST(Profile, TimesAnInstructionByItsLaneAndWork) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {200}, DType::u8, Role::weights);
  const Buffer y = pb.persistent("y", {200}, DType::u8, Role::weights);
  const auto seconds = [&](Lane lane, Cost cost) {
    pb.emit("i", {.reads = {x}, .writes = {y}, .lane = lane, .cost = cost}, kNothing);
    return predicted_seconds(set, set.programs[0].instructions.back(), slow_machine());
  };
  EXPECT_DOUBLE_EQ(seconds(Lane::upload, {}), 2);  // 200 bytes
  EXPECT_DOUBLE_EQ(seconds(Lane::download, {}), 4);
  EXPECT_DOUBLE_EQ(seconds(Lane::disk, {.bytes = 30}), 3);
  EXPECT_DOUBLE_EQ(seconds(Lane::disk, {.work = Work::disk_write, .bytes = 30}), 3);
  const Instruction written = set.programs[0].instructions.back();
  MachineProfile slow_writes = slow_machine();
  slow_writes.disk_write_bandwidth = 5;
  EXPECT_DOUBLE_EQ(predicted_seconds(set, written, slow_writes), 6);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {}), 0.25 + 1);  // reads 200, writes 200
  EXPECT_DOUBLE_EQ(seconds(Lane::host, {.bytes = 800}), 0.25 + 2);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.work = Work::gemm, .flops = 5000}), 0.25 + 5);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.work = Work::attention, .flops = 5000}), 0.25 + 10);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.work = Work::fp8_gemm, .flops = 9500}), 0.25 + 5);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.work = Work::attention_backward, .flops = 5000}),
                   0.25 + 20);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.work = Work::gemm, .flops = 500}), 0.25 + 1);
  EXPECT_DOUBLE_EQ(seconds(Lane::compute, {.bytes = 800, .launches = 3}), 3 * 0.25 + 2);
}

TEST(Profile, TimesAnExchangeByTheLinkOfItsGroup) {
  ProgramSet set;
  set.groups = {{.name = "host", .size = 2}, {.name = "all", .size = 4, .one_host = false}};
  ProgramBuilder pb(set, "p");
  const auto seconds = [&](int group, double bytes) {
    MachineProfile p = slow_machine();
    p.peer_bandwidth = 40;
    p.peer_seconds = 1;
    p.network_bandwidth = 20;
    p.network_seconds = 3;
    pb.emit(
        "i",
        {.lane = Lane::network, .cost = {.work = Work::network, .bytes = bytes, .group = group}},
        kNothing);
    return predicted_seconds(set, set.programs[0].instructions.back(), p);
  };
  EXPECT_DOUBLE_EQ(seconds(0, 80), 1 + 2);
  EXPECT_DOUBLE_EQ(seconds(1, 80), 3 + 4);
  EXPECT_DOUBLE_EQ(seconds(1, 0), 3);  // a barrier
}

// An exchange is hidden behind what is computed beside it.
TEST(Predict, ComputesBesideAnExchange) {
  ProgramSet set;
  set.groups = {{.name = "all", .size = 2}};
  ProgramBuilder pb(set, "p");
  const Buffer sent = pb.persistent("sent", {4}, DType::f32, Role::gradient);
  const Buffer came = pb.persistent("came", {4}, DType::f32, Role::gradient);
  const Buffer other = pb.persistent("other", {4}, DType::f32, Role::gradient);
  const Cost second = {.bytes = 0.75 * 400};  // and a launch
  pb.emit("make", {.writes = {sent}, .cost = second}, kNothing);
  pb.emit("exchange",
          {.reads = {sent},
           .writes = {came},
           .lane = Lane::network,
           .cost = {.work = Work::network, .bytes = 20, .group = 0}},
          kNothing);
  pb.emit("beside", {.writes = {other}, .cost = second}, kNothing);
  pb.emit("use", {.reads = {came}, .cost = second}, kNothing);
  MachineProfile p = slow_machine();
  p.peer_bandwidth = 10;
  p.peer_seconds = 0.5;
  const PredictedTime time = predict(set, plan_memory(set), 0, p);
  EXPECT_DOUBLE_EQ(time.busy[to_size(Lane::network)], 2.5);
  EXPECT_DOUBLE_EQ(time.exposed_stall, 1.5);
  EXPECT_DOUBLE_EQ(time.seconds, 1 + 2.5 + 1);
}

TEST(Profile, ProductsInF32HaveARateOfTheirOwnOnAGpu) {
  MachineProfile p = slow_machine();
  EXPECT_DOUBLE_EQ(f32_gemm_flops(p), 1000);  // processors multiply in f32 anyway
  p.device = Device::cuda;
  EXPECT_DOUBLE_EQ(f32_gemm_flops(p), 1000.0 / 13);  // measured before it was asked for
  p.f32_gemm_flops = 125;
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer y = pb.persistent("y", {4}, DType::f32, Role::weights);
  pb.emit("i", {.writes = {y}, .cost = {.work = Work::f32_gemm, .flops = 5000}}, kNothing);
  EXPECT_DOUBLE_EQ(predicted_seconds(set, set.programs[0].instructions[0], p), 0.25 + 40);
  for (const MachineProfile& known : bundled_profiles()) {
    EXPECT_GT(known.gemm_flops, 2 * f32_gemm_flops(known)) << known.name;
    EXPECT_GT(known.f32_gemm_flops, 1e13) << known.name;
  }
}

// x [2, 300] times a matrix [80, 300]: 96,000 operations, 300 steps along the contraction.
TEST(Predict, ASmallProductTakesAsLongAsItsContraction) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const auto matrix = [&](const char* name, const Shape& shape) {
    return pb.persistent(name, shape, DType::u8, Role::input);
  };
  const Buffer x = matrix("x", {2, 300}), w = matrix("w", {80, 300}), y = matrix("y", {2, 80});
  const Buffer few = matrix("few", {40, 300}), u = matrix("u", {2, 40});
  const Cost cost = {.work = Work::gemm, .flops = 2 * 2 * 80 * 300};
  pb.emit("linear", {.reads = {x, w}, .writes = {y}, .cost = cost}, kNothing);
  // A sum over rows, made in pieces side by side, has another number of columns.
  pb.emit("linear_dw", {.reads = {x, y}, .writes = {w}, .cost = cost}, kNothing);
  // Of few columns, as adapters have, eight share the walk.
  pb.emit(
      "linear",
      {.reads = {x, few}, .writes = {u}, .cost = {.work = Work::gemm, .flops = 2 * 2 * 40 * 300}},
      kNothing);
  MachineProfile p = slow_machine();
  const auto seconds = [&](std::size_t i) {
    return predicted_seconds(set, set.programs[0].instructions[i], p);
  };
  EXPECT_DOUBLE_EQ(seconds(0), 0.25 + 96);  // not measured
  p.product_step_seconds = 0.3;
  EXPECT_DOUBLE_EQ(seconds(0), 0.25 + 96);
  p.product_step_seconds = 2;
  EXPECT_DOUBLE_EQ(seconds(0), 0.25 + 600);
  EXPECT_DOUBLE_EQ(seconds(1), 0.25 + 96);
  EXPECT_DOUBLE_EQ(seconds(2), 0.25 + 75);
}

// upload  w0 |--2--| w1 |--2--|       w0 again |--2--|
// compute          |-1.5-|  |--5--|            |-1.5-|
TEST(Predict, PlaysLanesSideBySideAndCountsTheExposedStall) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer source = pb.persistent("s", {200}, DType::u8, Role::weights, Tier::host);
  const Buffer w0 = pb.persistent("w0", {200}, DType::u8, Role::weight_slots);
  const Buffer w1 = pb.persistent("w1", {200}, DType::u8, Role::weight_slots);
  const auto upload = [&](Buffer w) {
    pb.emit("upload", {.reads = {source}, .writes = {w}, .lane = Lane::upload}, kNothing);
  };
  const auto compute = [&](Buffer w, double bytes) {
    pb.emit("use", {.reads = {w}, .cost = {.bytes = bytes}}, kNothing);
  };
  upload(w0);         // 0 to 2
  compute(w0, 500);   // waits for it: 2 to 3.5
  upload(w1);         // 2 to 4, under the compute before
  compute(w1, 1900);  // waits half a second: 4 to 9
  upload(w0);         // its reader was done at 3.5: 4 to 6, hidden
  compute(w0, 500);   // 9 to 10.5, no wait
  const PredictedTime t = predict(set, plan_memory(set), 0, slow_machine());
  EXPECT_DOUBLE_EQ(t.seconds, 10.5);
  EXPECT_DOUBLE_EQ(t.exposed_stall, 2.5);
  EXPECT_DOUBLE_EQ(t.busy[to_size(Lane::compute)], 8);
  EXPECT_DOUBLE_EQ(t.busy[to_size(Lane::upload)], 6);
  EXPECT_DOUBLE_EQ(t.busy[to_size(Lane::disk)], 0);
}

// Both ways of the link stretch copies that were timed before: their ends follow.
TEST(Predict, TheTimelineEndsWithTheStepAndKeepsLanesInOrder) {
  MachineProfile p = slow_machine();
  p.both_ways_bandwidth = 110;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const RandomProgram random(seed);
    const MemoryPlan plan = plan_memory(random.set);
    Timeline timeline;
    const PredictedTime time = predict(random.set, plan, 0, p, &timeline);
    const auto& code = random.set.programs[0].instructions;
    ASSERT_EQ(timeline.instructions.size(), code.size());
    double end = 0;
    std::array<double, kLaneCount> free_at{}, busy{};
    for (std::size_t i = 0; i < code.size(); ++i) {
      const Timeline::Span& span = timeline.instructions[i];
      const std::size_t lane = to_size(code[i].lane);
      EXPECT_GE(span.begin, free_at[lane]) << seed << " instruction " << i;
      EXPECT_GE(span.end, span.begin);
      free_at[lane] = span.end;
      busy[lane] += span.end - span.begin;
      end = std::max(end, span.end);
    }
    EXPECT_EQ(end, time.seconds) << seed;
    EXPECT_EQ(predict(random.set, plan, 0, p).seconds, time.seconds);
    for (std::size_t l = 0; l < kLaneCount; ++l) EXPECT_NEAR(busy[l], time.busy[l], 1e-9) << seed;
  }
}

TEST(Predict, AnUploadIntoASlotInUseIsExposed) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer source = pb.persistent("s", {200}, DType::u8, Role::weights, Tier::host);
  const Buffer slot = pb.persistent("slot", {200}, DType::u8, Role::weight_slots);
  for (int i = 0; i < 3; ++i) {
    pb.emit("upload", {.reads = {source}, .writes = {slot}, .lane = Lane::upload}, kNothing);
    pb.emit("use", {.reads = {slot}, .cost = {.bytes = 700}}, kNothing);
  }
  const PredictedTime t = predict(set, plan_memory(set), 0, slow_machine());
  EXPECT_DOUBLE_EQ(t.seconds, 3 * (2 + 2));
  EXPECT_DOUBLE_EQ(t.exposed_stall, 3 * 2);
}

// Alone 2 and 4 seconds, of which both ways are in use for 2.
TEST(Predict, BothWaysOfTheLinkAtOnceTakeLonger) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer host = pb.persistent("host", {200}, DType::u8, Role::weights, Tier::host);
  const Buffer home = pb.persistent("home", {200}, DType::u8, Role::weights, Tier::host);
  const Buffer in = pb.persistent("in", {200}, DType::u8, Role::weights);
  const Buffer out = pb.persistent("out", {200}, DType::u8, Role::weights);
  pb.emit("upload", {.reads = {host}, .writes = {in}, .lane = Lane::upload}, kNothing);
  pb.emit("download", {.reads = {out}, .writes = {home}, .lane = Lane::download}, kNothing);
  const MemoryPlan plan = plan_memory(set);
  MachineProfile p = slow_machine();
  const auto busy = [&](Lane lane) { return predict(set, plan, 0, p).busy[to_size(lane)]; };
  EXPECT_DOUBLE_EQ(busy(Lane::download), 4);  // not measured, and no GPU's link
  p.both_ways_bandwidth = 125;                // of 150
  EXPECT_DOUBLE_EQ(busy(Lane::upload), 2.4);
  EXPECT_DOUBLE_EQ(busy(Lane::download), 4.4);
  EXPECT_DOUBLE_EQ(predict(set, plan, 0, p).seconds, 4.4);
  p.both_ways_bandwidth = 150;
  EXPECT_DOUBLE_EQ(busy(Lane::upload), 2);
  p.both_ways_bandwidth = 0;
  p.device = Device::cuda;
  EXPECT_GT(busy(Lane::upload), 2);
}

TEST(Predict, ACopyOfAGpuThatWaitsTakesLonger) {
  const auto uploading = [](int slots) {
    ProgramSet set;
    ProgramBuilder pb(set, "p");
    const Buffer host = pb.persistent("host", {200}, DType::u8, Role::weights, Tier::host);
    std::vector<Buffer> in;
    for (int i = 0; i < slots; ++i) {
      in.push_back(pb.persistent(fmt::format("in{}", i), {200}, DType::u8, Role::weights));
    }
    for (std::size_t i = 0; i < 6; ++i) {
      const Buffer slot = in[i % in.size()];
      pb.emit("upload", {.reads = {host}, .writes = {slot}, .lane = Lane::upload}, kNothing);
      pb.emit("use", {.reads = {slot}}, kNothing);
    }
    MachineProfile p = slow_machine();
    p.upload_bandwidth = 1e12;
    p.device = Device::cuda;
    const PredictedTime t = predict(set, plan_memory(set), 0, p);
    return t.busy[to_size(Lane::upload)];
  };
  EXPECT_NEAR(uploading(6), 6 * 10e-6, 1e-7) << "one behind the other";
  EXPECT_NEAR(uploading(1), 10e-6 + 5 * 20e-6, 1e-7) << "each waits for its slot";
}

TEST(Predict, EndsWithTheLastLane) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {200}, DType::u8, Role::weights);
  pb.emit("use", {.writes = {x}}, kNothing);                          // 0 to 0.75
  pb.emit("save", {.reads = {x}, .lane = Lane::download}, kNothing);  // to 2.75
  const PredictedTime t = predict(set, plan_memory(set), 0, slow_machine());
  EXPECT_DOUBLE_EQ(t.seconds, 2.75);
  EXPECT_DOUBLE_EQ(t.exposed_stall, 0);
}

}  // namespace
}  // namespace ballast::predict_test
