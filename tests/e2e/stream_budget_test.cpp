// A model eight times the size of the memory it may use.

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "core/convert.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "io/weight_files.h"
#include "memory/process_memory.h"
#include "models/wan/dit.h"
#include "models/wan/weights.h"
#include "ops/linear/sgemm.h"
#include "plan/process_lines.h"
#include "plan/runner.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/temp_dir.h"

namespace ballast::stream_budget_test {
namespace {

constexpr Bytes kRam = 256_MiB;

wan::Config model_of(std::int64_t layers) {
  return {.name = "budget",
          .description = "",
          .dim = 1024,
          .ffn_dim = 4096,
          .heads = 8,
          .layers = layers,
          .in_dim = 16,
          .out_dim = 16,
          .text_dim = 512,
          .text_len = 64};
}

// Weights of +-0.03 in bf16, which keep activations near 1. Tensors are windows into one random
// megabyte: 2 GB of fresh random numbers would take longer than the test.
void write_model(const std::string& path, const wan::Config& config) {
  constexpr std::size_t kPattern = 1 << 19;
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-0.03f, 0.03f);
  std::vector<float> values(kPattern);
  for (float& v : values) v = uniform(random);
  std::vector<std::uint16_t> pattern(kPattern);
  convert(values.data(), DType::f32, pattern.data(), DType::bf16, kPattern);

  SafetensorsWriter writer({.metadata = {}, .alignment = kDiskAlignment});
  wan::each_parameter(config, [&](int, const std::string& name, const Shape& shape) {
    const std::size_t start = random() % kPattern;
    writer.add(name, DType::bf16, shape, [&pattern, start, shape](const ByteSink& sink) {
      std::size_t at = start, left = to_size(shape.elements());
      while (left > 0) {
        const std::size_t count = std::min(left, pattern.size() - at);
        sink(std::as_bytes(std::span(pattern).subspan(at, count)));
        left -= count;
        at = 0;
      }
    });
  });
  // Scratch: a disk that takes 2 GB in a minute would be all that the test measures. For the same
  // reason it is read through the page cache below.
  writer.write(path, Durability::process);
}

// Looks at the process's memory all the time from a thread of its own.
class MemoryWatch {
 public:
  MemoryWatch() : thread_([this] { watch(); }) {}
  ~MemoryWatch() { peak(); }
  Bytes peak() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  void watch() {
    do {
      if (const auto m = process_memory()) peak_ = std::max(peak_, m->total());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } while (!stop_);
  }

  std::atomic<bool> stop_{false};
  Bytes peak_;
  std::thread thread_;
};

struct Ran {
  Bytes arenas, lines;  // planned
  Bytes touched;        // of the arenas
  std::vector<float> output;

  Bytes planned() const { return arenas + lines; }
};

// Opens the file and computes one velocity prediction of 64 tokens, as an inference run does.
Ran run(const std::string& path, const wan::Config& config, const char* policy) {
  const WeightFiles file = WeightFiles::open(path, DiskMode::buffered);
  ProgramSet set;
  set.backend = {.device = Device::cpu, .threads = 2};
  wan::DitJob job;
  job.config = config;
  job.policy = find_policy(policy).value();
  job.batches = {{.latents = {{.frames = 4, .height = 8, .width = 8}}}};
  const wan::Dit dit(set, job, wan::weight_groups(config, file));
  const MemoryPlan plan = plan_memory(set);
  Ran ran;
  ran.arenas = plan.peak_of(Tier::device) + plan.peak_of(Tier::host);
  const RunnerOptions options;
  for (const ProcessLine& line :
       process_lines(set, {.blas_bytes_per_thread = ops::kBlasBufferTouched,
                          .disk_readers = options.disk_readers})) {
    ran.lines += line.bytes;
  }

  Runner runner(set, plan, options);
  ops::warm_up_blas(runner.compute_threads());
  const wan::DitSampleIo& io = dit.io().runs[0].samples[0];
  runner.run("load");
  runner.view(dit.io().runs[0].timesteps).as<double>()[0] = 500;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const Buffer b : {io.latent, io.context}) {
    const TensorView v = runner.view(b);
    for (std::int64_t i = 0; i < v.elements(); ++i) v.as<float>()[i] = normal(random);
  }
  runner.run("step");
  const TensorView out = runner.view(io.output);
  ran.output.assign(out.as<float>(), out.as<float>() + out.elements());
  ran.touched = runner.high_water(Tier::device) + runner.high_water(Tier::host);
  return ran;
}

TEST(StreamBudget, TwoGigabytesOfWeightsPassThrough256MiB) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // sanitizers keep shadow memory that no plan knows
  const test::TempDir dir;
  const std::string path = dir.path("model.safetensors");
  const wan::Config config = model_of(60);
  write_model(path, config);
  ASSERT_GE(std::filesystem::file_size(path), 2'000'000'000u);
  ::malloc_trim(0);  // what earlier tests and the writer left behind is not this run's

  MemoryWatch watch;
  const Ran ran = run(path, config, "stream2");
  const Bytes measured = watch.peak();
  RecordProperty("planned_arenas", std::to_string(ran.arenas.count));
  RecordProperty("planned_lines", std::to_string(ran.lines.count));
  RecordProperty("measured", std::to_string(measured.count));
  EXPECT_LE(ran.planned(), kRam);
  EXPECT_LE(measured, ran.planned());
  EXPECT_GE(measured, ran.arenas) << "the watch did not see the run";
  EXPECT_EQ(ran.touched, ran.arenas) << "the plan holds memory that nobody was given";
  for (const float v : ran.output) ASSERT_TRUE(std::isfinite(v));
}

TEST(StreamBudget, StreamedWeightsGiveTheBitsOfResidentOnes) {
  const test::TempDir dir;
  const std::string path = dir.path("model.safetensors");
  const wan::Config config = model_of(3);
  write_model(path, config);
  const Ran streamed = run(path, config, "stream2"), resident = run(path, config, "resident");
  EXPECT_LT(streamed.arenas, resident.arenas);
  ASSERT_EQ(streamed.output.size(), resident.output.size());
  EXPECT_EQ(std::memcmp(streamed.output.data(), resident.output.data(),
                        resident.output.size() * sizeof(float)),
            0);
  // Neither is trivially zero.
  double sum = 0;
  for (const float v : resident.output) sum += std::abs(v);
  EXPECT_GT(sum / static_cast<double>(resident.output.size()), 1e-3);
}

}  // namespace
}  // namespace ballast::stream_budget_test
