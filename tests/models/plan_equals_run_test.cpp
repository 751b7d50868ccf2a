// The plan is what a run does: its peaks are touched to the last byte, nothing is allocated beside
// it, and its numbers are those one gets by hand.

#include <gtest/gtest.h>

#include "models/wan/params.h"
#include "ops/linear/sgemm.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/tiny_dit.h"

namespace ballast::support {
namespace {

using wan::Mode;

constexpr Mode kModes[] = {Mode::infer, Mode::lora, Mode::full};

MemoryPolicy everything() {
  return {.name = "everything at once",
          .streaming = Streaming{.slots = 1},
          .activations = Activations::recomputed,
          .offload = true,
          .chunk_tokens = 256,
          .heads_per_group = 1};
}

std::vector<MemoryPolicy> policies() {
  std::vector<MemoryPolicy> all(named_policies().begin(), named_policies().end());
  all.push_back(everything());
  all.push_back({.name = "from host",
                 .streaming = Streaming{
                     .slots = 2, .resident_groups = 1, .stream_from = StreamSource::host}});
  all.push_back({.name = "two from host",
                 .streaming = Streaming{.slots = 1, .resident_groups = 1, .host_groups = 2}});
  all.push_back({.name = "a large ring",
                 .streaming = Streaming{.slots = 1, .host_groups = 1, .extra_ring_buffers = 20}});
  return all;
}

class PlanEqualsRun : public ::testing::Test {
 protected:
  TinyDit make(const TinyJob& job) const {
    return TinyDit(config_, file_.path(), tiny_batch({{2, 20, 30}, {1, 6, 10}}, config_.text_len),
                   job);
  }
  // Bytes of the buffers of a role: all of a program, or the persistent ones.
  static std::uint64_t bytes_of(const ProgramSet& set, Role role, Tier tier,
                                std::string_view program = "") {
    const int index = program.empty() ? kPersistent : set.program_index(program);
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < set.buffers.size(); ++i) {
      const BufferSpec& s = set.buffers[i];
      if (s.root.id == i && s.role == role && s.tier == tier && s.program == index) sum += s.bytes;
    }
    return sum;
  }

  wan::Config config_ = tiny_config();
  TinyCheckpoint file_{config_};
};

TEST_F(PlanEqualsRun, HighWaterIsThePeakToTheByte) {
  for (const Mode mode : kModes) {
    for (const MemoryPolicy& policy : policies()) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(mode), policy.name));
      TinyDit dit = make({.mode = mode, .policy = policy, .update = mode != Mode::infer});
      dit.run();
      for (const Tier tier : kTiers) {
        EXPECT_EQ(dit.runner().high_water(tier).count, dit.plan().peak_of(tier).count)
            << name_of(tier);
      }
    }
  }
}

TEST_F(PlanEqualsRun, NothingIsAllocatedDuringAStepOrAnUpdate) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  for (const Mode mode : kModes) {
    for (const MemoryPolicy& policy :
         {MemoryPolicy(), everything(), *find_policy("offload"), *find_policy("state-on-disk")}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(mode), policy.name));
      const bool update = mode != Mode::infer;
      TinyDit dit = make({.mode = mode, .policy = policy, .update = update});
      ops::warm_up_blas(dit.runner().compute_threads());
      dit.run();
      const int step = dit.set().program_index("step");
      const int adamw = update ? dit.set().program_index("update") : -1;
      // A GPU's recordings are made before a program's second run.
      dit.runner().run(step);
      if (update) dit.runner().run(adamw, {.step = 2, .learning_rate = 0.01});
      allocation_hook::arm();
      dit.runner().run(step);
      if (update) dit.runner().run(adamw, {.step = 3, .learning_rate = 0.01});
      dit.runner().run(step);
      const auto seen = allocation_hook::disarm();
      EXPECT_EQ(seen.calls(), 0) << seen.bytes() << " bytes, first from\n" << seen.first;
      EXPECT_LE(seen.library_heap_calls, seen.frees) << "CUDA's libraries keep more and more";
      EXPECT_EQ(seen.library_map_calls, 0);
    }
  }
}

TEST_F(PlanEqualsRun, HookSeesWhatARunnerAllocates) {  // the test above can fail
  SKIP_WITHOUT_ALLOCATION_HOOK();
  allocation_hook::arm();
  TinyDit dit = make({});
  EXPECT_GT(allocation_hook::disarm().map_calls, 0);
}

// ---------------------------------------------------------------- by hand

// C 64, F 96, in 6, out 4, Q 16, X 20, three layers:
//   block     10 matrices: 8 C^2 + 2 C F          45056
//             vectors: 8 C + F + C biases, 4 C gains, 2 C norm3, 6 C modulation      1440
//   embed     24 C + X C + C^2 + Q C + C^2 + 6 C^2 = 36608, biases C + 2 C + 2 C + 6 C
//   head      16 C + 16 + 2 C
constexpr std::uint64_t kBlockMatrices = 8 * 64 * 64 + 2 * 64 * 96;
constexpr std::uint64_t kBlockVectors = 8 * 64 + 96 + 64 + 4 * 64 + 2 * 64 + 6 * 64;
constexpr std::uint64_t kEmbedMatrices = 24 * 64 + 20 * 64 + 16 * 64 + 8 * 64 * 64;
constexpr std::uint64_t kEmbedVectors = 11 * 64;
constexpr std::uint64_t kHeadMatrices = 16 * 64;
constexpr std::uint64_t kHeadVectors = 16 + 2 * 64;
constexpr std::uint64_t kVectors = kEmbedVectors + 3 * kBlockVectors + kHeadVectors;
constexpr std::uint64_t kAll = kEmbedMatrices + 3 * kBlockMatrices + kHeadMatrices + kVectors;
constexpr std::uint64_t kTokens = 300 + 15;

TEST_F(PlanEqualsRun, ResidentWeightsAreTheSumOfTheParameters) {
  const TinyDit dit = make({});
  EXPECT_EQ(bytes_of(dit.set(), Role::weights, Tier::device), 4 * kAll);
  EXPECT_EQ(bytes_of(dit.set(), Role::weight_slots, Tier::device), 0u);
  EXPECT_EQ(bytes_of(dit.set(), Role::weights, Tier::host), 0u);
  const TinyDit narrow = make({.format = WeightFormat::bf16});  // matrices of blocks only
  EXPECT_EQ(bytes_of(narrow.set(), Role::weights, Tier::device), 4 * kAll - 2 * 3 * kBlockMatrices);
  const TinyDit rows = make({.format = WeightFormat::int8_rows});  // and a scale per row
  EXPECT_EQ(bytes_of(rows.set(), Role::weights, Tier::device),
            4 * kAll - 3 * 3 * kBlockMatrices + 4 * 3 * (9 * 64 + 96));
}

TEST_F(PlanEqualsRun, StreamedWeightsTakeSlotsOfTheLargestGroup) {
  // All sizes here are multiples of the slot's alignment.
  static_assert(4 * kBlockMatrices > 4 * kEmbedMatrices && 4 * 24 * 64 % 256 == 0);
  for (const int slots : {1, 2, 4}) {
    const TinyDit dit = make({.policy = {.streaming = Streaming{.slots = slots}}});
    EXPECT_EQ(bytes_of(dit.set(), Role::weight_slots, Tier::device),
              static_cast<std::uint64_t>(slots) * 4 * kBlockMatrices);
    EXPECT_EQ(bytes_of(dit.set(), Role::weights, Tier::device), 4 * kVectors);
    EXPECT_EQ(bytes_of(dit.set(), Role::weights, Tier::host), 0u);
  }
  const TinyDit host =
      make({.policy = {.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host}}});
  EXPECT_EQ(bytes_of(host.set(), Role::weights, Tier::host), 4 * (kAll - kVectors));
}

TEST_F(PlanEqualsRun, AdaptersHaveFactorsGradientsAndMoments) {
  // rank 3: eight square layers and two of 64 and 96
  constexpr std::uint64_t kFactors = 3 * 3 * (8 * (64 + 64) + 2 * (64 + 96));
  const TinyDit dit = make({.mode = Mode::lora, .update = true});
  EXPECT_EQ(bytes_of(dit.set(), Role::adapter, Tier::device), 4 * kFactors);
  EXPECT_EQ(bytes_of(dit.set(), Role::gradient, Tier::device), 4 * kFactors);
  EXPECT_EQ(bytes_of(dit.set(), Role::optimizer, Tier::device), 2 * 4 * kFactors);
}

TEST_F(PlanEqualsRun, AdaptersStandInTheMarginsOfWeightsOfTheActivationsType) {
  if (test_device() == Device::cuda) GTEST_SKIP() << "the numbers are those of f32";
  // Rank 3 is padded to 8 rows below and, with room up to the next 128 bytes, 32 columns beside:
  // q with the rows of q, k and v; k and v without; o, cross q, cross o; feed-forward up and down.
  constexpr std::uint64_t kWide =
      (64 + 24) * 96 + 2 * 64 * 96 + 3 * (64 + 8) * 96 + (96 + 8) * 96 + (64 + 8) * 128;
  constexpr std::uint64_t kPlain = 6 * 64 * 64 + 2 * 64 * 96;
  const TinyDit dit = make({.mode = Mode::lora});
  EXPECT_EQ(bytes_of(dit.set(), Role::weights, Tier::device), 4 * (kAll + 3 * (kWide - kPlain)));
  const TinyDit host =
      make({.mode = Mode::lora,
            .policy = {.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host}}});
  EXPECT_EQ(bytes_of(host.set(), Role::weight_slots, Tier::device),
            4 * (kBlockMatrices + kWide - kPlain));
  EXPECT_EQ(bytes_of(host.set(), Role::weights, Tier::host), 4 * (kAll - kVectors));
  // Of another type they have none.
  const TinyDit narrow = make({.mode = Mode::lora, .format = WeightFormat::bf16});
  EXPECT_EQ(bytes_of(narrow.set(), Role::weights, Tier::device), 4 * kAll - 2 * 3 * kBlockMatrices);
}

TEST_F(PlanEqualsRun, FullTrainingHasGradientsAndMomentsBesideTheWeights) {
  const TinyDit resident = make({.mode = Mode::full, .update = true});
  EXPECT_EQ(bytes_of(resident.set(), Role::gradient, Tier::device), 4 * kAll);
  EXPECT_EQ(bytes_of(resident.set(), Role::optimizer, Tier::device), 2 * 4 * kAll);
  // Streamed: gradients and moments on the host; vectors, which are on the device, have masters.
  const TinyDit streamed =
      make({.mode = Mode::full, .policy = {.streaming = Streaming{.slots = 2}}, .update = true});
  EXPECT_EQ(bytes_of(streamed.set(), Role::gradient, Tier::host), 4 * kAll);
  EXPECT_EQ(bytes_of(streamed.set(), Role::optimizer, Tier::host), 2 * 4 * kAll + 4 * kVectors);
  EXPECT_EQ(bytes_of(streamed.set(), Role::gradient, Tier::device), 0u);
  EXPECT_EQ(bytes_of(streamed.set(), Role::optimizer, Tier::device), 0u);
}

TEST_F(PlanEqualsRun, CheckpointsAreOneResidualPerBlock) {
  if (test_device() == Device::cuda) GTEST_SKIP() << "the numbers are those of f32";
  constexpr std::uint64_t kInputs = 3 * kTokens * 64 * 4;
  for (const Mode mode : {Mode::lora, Mode::full}) {
    const TinyDit recomputed = make({.mode = mode, .policy = *find_policy("recompute")});
    EXPECT_EQ(bytes_of(recomputed.set(), Role::checkpoint, Tier::device, "step"), kInputs);
    EXPECT_EQ(bytes_of(recomputed.set(), Role::checkpoint, Tier::host, "step"), 0u);
    // Attention's output and its log-sum-exp of two heads come on top; behind the output's rows
    // there is room for what its layer's adapter makes of them, up to the next 128 bytes; on the
    // host for no more than that.
    const bool lora = mode == Mode::lora;
    const std::uint64_t kept = 3 * kTokens * (64 + (lora ? 32 : 0) + 2) * 4;
    const std::uint64_t kept_on_host = 3 * kTokens * (64 + (lora ? 8 : 0) + 2) * 4;
    const TinyDit attention = make({.mode = mode, .policy = *find_policy("keep-attention")});
    EXPECT_EQ(bytes_of(attention.set(), Role::checkpoint, Tier::device, "step"), kInputs + kept);
    const TinyDit offloaded = make({.mode = mode, .policy = *find_policy("offload")});
    EXPECT_EQ(bytes_of(offloaded.set(), Role::checkpoint, Tier::host, "step"),
              kInputs + kept_on_host);
  }
}

TEST_F(PlanEqualsRun, RolesAtThePeakAddUpToWhatIsAliveThere) {
  for (const MemoryPolicy& policy : policies()) {
    const TinyDit dit = make({.mode = Mode::lora, .policy = policy, .update = true});
    for (const ProgramUse& use : dit.plan().programs) {
      for (const Tier tier : kTiers) {
        const TierUse& t = use.tier(tier);
        std::uint64_t sum = 0;
        for (const Bytes b : t.roles) sum += b.count;
        // Persistent buffers start at multiples of 256 (staging: 4096); the gaps have no role.
        EXPECT_LE(sum, t.lower_bound.count) << policy.name << " " << use.name;
        EXPECT_LE(t.lower_bound.count, t.peak.count);
        EXPECT_GE(sum + 256 * dit.set().buffers.size(), t.lower_bound.count);
      }
    }
  }
}

// What the policies are for, in the same numbers: planned without a file, with a feed-forward wide
// enough to be the peak where chunks do not cut it.
TEST(PlannedDit, PoliciesTakeLessDeviceMemory) {
  wan::Config config = tiny_config();
  config.ffn_dim = 512;
  const auto device = [&](const MemoryPolicy& policy) {
    ProgramSet set;
    set.executable = false;
    const wan::Dit dit(set,
                       {.config = config,
                        .mode = Mode::lora,
                        .policy = policy,
                        .precision = {},
                        .batches = {{.latents = {{4, 20, 40}}}},
                        .lora = {},
                        .optimizer = {}},
                       wan::planned_groups(config, DType::f32));
    return plan_memory(set).peak_of(Tier::device).count;
  };
  EXPECT_LT(device(*find_policy("stream1")), device(*find_policy("stream2")));
  EXPECT_LT(device(*find_policy("recompute")), device(*find_policy("keep-attention")));
  EXPECT_LT(device(*find_policy("keep-attention")), device({}));
  EXPECT_LT(device(*find_policy("offload")), device(*find_policy("keep-attention")));
  EXPECT_LT(device(*find_policy("chunked")), device(*find_policy("recompute")));
  EXPECT_LT(device(everything()), device(*find_policy("chunked")));
}

TEST(PlannedDit, NeedsAsMuchAsOneWithAFile) {
  const Precision precision = precision_on(test_device());
  const wan::Config config = tiny_config();
  const TinyCheckpoint file(config);
  const TinyBatch batch = tiny_batch({{2, 20, 30}}, config.text_len);
  for (const MemoryPolicy& policy : policies()) {
    const TinyDit real(config, file.path(), batch, {.mode = Mode::full, .policy = policy});
    ProgramSet set;
    set.executable = false;
    set.backend = real.set().backend;
    const wan::Dit dit(set,
                       {.config = config,
                        .mode = Mode::full,
                        .policy = policy,
                        .precision = precision,
                        .batches = {{batch.latents, 2}},
                        .lora = {},
                        .input_gradients = true,
                        .optimizer = {}},
                       wan::planned_groups(config, DType::f32));
    const MemoryPlan plan = plan_memory(set);
    for (const Tier tier : {Tier::device, Tier::host}) {
      EXPECT_EQ(plan.peak_of(tier).count, real.plan().peak_of(tier).count) << policy.name;
    }
  }
}

}  // namespace
}  // namespace ballast::support
