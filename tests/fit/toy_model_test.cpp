// A model outside src/ is planned, run and refused with advice through fit.

#include "tests/fit/toy_model.h"

#include <gmock/gmock.h>

#include "core/to_size.h"
#include "fit/fit.h"
#include "fit/refusal_text.h"
#include "infer/require_plan.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/raw_tensor_file.h"

namespace ballast::toy {
namespace {

using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

class ToyModel : public testing::Test {
 protected:
  static constexpr std::int64_t kBlocks = 12;
  static constexpr Bytes kMatrix{kWidth * kWidth * sizeof(float)};
  static constexpr Bytes kLarge{1'000'000'000};

  void SetUp() override {
    for (std::int64_t g = 0; g < kBlocks + 2; ++g) file.add({kWidth, kWidth}, DType::f32, 3);
    file.open(DiskMode::automatic);
    for (std::size_t g = 0; g < kBlocks + 2; ++g) {
      const std::string name = g == 0         ? "first"
                               : g <= kBlocks ? fmt::format("blocks.{}", g - 1)
                                              : "last";
      groups.push_back({.name = name, .tensors = {{"weight", file.stored(g), std::nullopt}}});
    }
  }

  fit::Request request(std::int64_t rows, Bytes gpu = kLarge, Bytes ram = kLarge) const {
    FitJob job;
    job.rows = rows;
    job.weights = groups;
    return {.job = std::move(job),
            .profile = cpu_profile(1),
            .budget = {.gpu = gpu, .host = ram, .disk = {}}};
  }

  static fit::PlannedRun planned(const fit::Request& r) {
    auto outcome = fit::find_plan(r);
    EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
    auto run = std::get<fit::PlannedRun>(std::move(outcome));
    EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
    EXPECT_LE(run.needed_ram(), r.budget.host);
    return run;
  }

  // Room for all but four matrices.
  fit::Request smaller(std::int64_t rows) const {
    const fit::PlannedRun all = planned(request(rows));
    return request(rows, all.needed(Tier::device) - kMatrix * 4);
  }
  // What the lowest-memory plan needs, of RAM a page more: the search estimates from a few blocks
  // what the recording of all of them takes.
  fit::Request smallest(std::int64_t rows) const {
    fit::Request r = request(rows);
    const fit::PlannedRun lean = fit::plan_run(r, r.job->leanest().front());
    return request(rows, lean.needed(Tier::device), lean.needed_ram() + Bytes{4096});
  }

  test::RawTensorFile file;
  std::vector<WeightGroup> groups;
};

TEST_F(ToyModel, IsPlannedInsideItsBudget) {
  const fit::PlannedRun resident = planned(request(16));
  EXPECT_EQ(resident.policy, MemoryPolicy());

  const fit::PlannedRun some = planned(smaller(16));
  EXPECT_GT(some.policy.stream().slots, 0);
  EXPECT_GT(some.policy.stream().resident_groups, 0);
  EXPECT_GT(fit::streamed_blocks(*some.job, some.policy), 0);
  EXPECT_LT(fit::streamed_blocks(*some.job, some.policy), kBlocks);
  EXPECT_LT(some.needed(Tier::device), resident.needed(Tier::device));

  const fit::PlannedRun none = planned(smallest(16));
  EXPECT_EQ(fit::streamed_blocks(*none.job, none.policy), kBlocks);
  EXPECT_LT(none.needed(Tier::device), some.needed(Tier::device));
}

TEST_F(ToyModel, RunsWithTheSameBitsUnderEveryPlan) {
  constexpr std::int64_t kRows = 16;
  std::vector<float> x(kRows * kWidth), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  std::vector<float> expected = x;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<float> w(kWidth * kWidth);
    std::memcpy(w.data(), file.data(g), kMatrix.count);
    multiply(expected.data(), w.data(), y.data(), kRows);
    expected = y;
  }

  for (const fit::Request& r : {request(kRows), smaller(kRows), smallest(kRows)}) {
    const fit::PlannedRun run = planned(r);
    SCOPED_TRACE(run.policy.name);
    ProgramSet set;
    set.backend = r.backend;
    const Io io = run.job.as<FitJob>().record_into(set, run.policy);
    Runner runner(set, run.plan);
    runner.write(io.x, std::as_bytes(std::span(x)));
    runner.run("load");
    for (int step = 0; step < 2; ++step) {
      runner.run("step");
      runner.read(io.y, std::as_writable_bytes(std::span(y)));
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0);
    }
    for (const Tier t : {Tier::device, Tier::host}) {
      EXPECT_EQ(runner.high_water(t), run.plan.peak_of(t)) << name_of(t);
    }
  }
}

TEST_F(ToyModel, IsRefusedWithAdviceThatWasPlanned) {
  constexpr std::int64_t kRows = 4096;
  const fit::Request r = request(kRows, Bytes{3'000'000});
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const auto& refusal = std::get<Refusal>(outcome);

  std::vector<fit::Change> changes = fit::larger_budgets(refusal, false, r.budget);
  const auto fewer_rows = [](std::int64_t rows) {
    return [rows](fit::Request& c) { c.job.as<FitJob>().rows = rows; };
  };
  const std::int64_t rows = fit::largest_fitting(kRows, r, fewer_rows);
  ASSERT_GT(rows, 0);
  ASSERT_LT(rows, kRows);
  changes.push_back({.text = fmt::format("--rows {}", rows), .apply = fewer_rows(rows)});
  ASSERT_EQ(changes.size(), 2u);

  const std::vector<PlannedChange> tried = fit::try_changes(r, refusal, changes);
  std::vector<std::string> texts;
  for (const PlannedChange& advised : tried) {
    SCOPED_TRACE(advised.text);
    EXPECT_TRUE(advised.fits);
    fit::Request changed = r;
    const auto change = std::ranges::find(changes, advised.text, &fit::Change::text);
    ASSERT_NE(change, changes.end());
    change->apply(changed);
    const fit::PlannedRun run = planned(changed);
    for (const Tier t : kTiers) {
      EXPECT_EQ(run.needed(t), advised.needed[to_size(t)]) << name_of(t);
    }
    texts.push_back(advised.text);
  }

  const PlanTitle title = {.model = "toy",
                           .mode = "multiply",
                           .shape = fmt::format("{} rows", kRows),
                           .weights = std::string(name_of(r.job->format())),
                           .machine = machine_text(r.profile),
                           .budget = r.budget,
                           .shared_ram = true};
  const auto error = test::error_of([&] { fit::fail_refused(title, r, refusal, changes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::refused);
  EXPECT_EQ(error->what(), fit::refusal_text(refusal, title));
  EXPECT_THAT(error->what(),
              AllOf(StartsWith("does not fit: 5.454 MB more RAM (compute share, --gpu) needed\n"),
                    HasSubstr("even with the lowest-memory plan"),
                    HasSubstr("in the step: multiply of block ")));
  std::vector<std::string> advice;
  for (const Advice& a : error->advice()) {
    EXPECT_THAT(a.effect, StartsWith("fits: "));
    advice.push_back(a.change);
  }
  EXPECT_THAT(advice, ElementsAreArray(texts));
}

// Parts of a command follow one another in the same memory: a change that helps one of them is no
// help where another does not fit with it.
TEST_F(ToyModel, AdviceIsPlannedForEveryPartOfACommand) {
  constexpr Bytes kShare{3'000'000};
  const auto part = [&](std::int64_t rows, const char* name) {
    fit::Request r = request(rows, kShare);
    PlanTitle title = infer::title_of(r, name, "multiply", fmt::format("{} rows", rows));
    return infer::CommandPart{std::move(r), std::move(title)};
  };
  // The last one fits.
  const std::vector<infer::CommandPart> parts = {part(3500, "second"), part(4096, "first"),
                                                 part(16, "third")};
  const auto fewer = [](std::int64_t from) {
    return [from](fit::Request& r) {
      std::int64_t& rows = r.job.as<FitJob>().rows;
      if (rows == from) rows = 16;
    };
  };
  const std::vector<fit::Change> possible = {{"--first 16", fewer(4096)},
                                             {"--second 16", fewer(3500)}};
  const auto changes = [&](std::span<const fit::Request> refused) {
    EXPECT_EQ(refused.size(), 2u);
    return possible;
  };
  const auto error = test::error_of([&] { infer::require_plans(parts, changes); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("first multiply: 4096 rows"));  // it misses most

  std::vector<std::string> texts;
  for (const Advice& line : error->advice()) {
    SCOPED_TRACE(line.change);
    texts.push_back(line.change);
    bool fits = true;
    for (const infer::CommandPart& p : parts) {
      fit::Request r = p.request;
      for (const fit::Change& c : possible) {
        if (line.change.find(c.text) != line.change.npos) c.apply(r);
      }
      if (line.change.starts_with("--gpu ")) {
        r.budget.gpu = parse_bytes(line.change.substr(6)).value();
      }
      fits = fits && std::holds_alternative<fit::PlannedRun>(fit::find_plan(r));
    }
    EXPECT_EQ(fits, line.effect.starts_with("fits: ")) << line.effect;
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_THAT(texts.front(), StartsWith("--gpu "));  // enough for all of them

  // Where the budget stays, both are needed.
  fit::Request first = parts[1].request;
  const auto outcome = fit::find_plan(first);
  const std::vector<fit::Request> others = {parts[0].request, parts[2].request};
  const std::vector<PlannedChange> tried =
      fit::try_changes(first, std::get<Refusal>(outcome), possible, {}, {}, others);
  ASSERT_EQ(tried.size(), 3u);
  EXPECT_EQ(tried[0].text, "--first 16 --second 16");
  EXPECT_TRUE(tried[0].fits);
  EXPECT_FALSE(tried[1].fits);
  EXPECT_FALSE(tried[2].fits);
}

// On the CPU the compute share is part of the RAM.
TEST_F(ToyModel, BytesShortOfTheComputeShareAndOfRamAreCountedOnce) {
  const fit::Request r = request(4096, Bytes{3'000'000}, Bytes{3'500'000});
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const auto& refusal = std::get<Refusal>(outcome);
  ASSERT_EQ(refusal.shortages.size(), 2u);
  const fit::Change nothing = {.text = "nothing", .apply = [](fit::Request&) {}};
  const std::vector<PlannedChange> tried = fit::try_changes(r, refusal, {nothing});
  ASSERT_EQ(tried.size(), 1u);
  EXPECT_FALSE(tried[0].fits);
  const auto& [device, host, disk] = refusal.needed;
  EXPECT_EQ(tried[0].missing, std::max(device - r.budget.gpu, device + host - r.budget.host));
}

}  // namespace
}  // namespace ballast::toy
