// One transformer block, forward and backward with gradients of all weights, against the BLAS.
//
// Asks three things: what share of plain sgemm's speed the whole block reaches, what weights in
// narrower formats cost, and what it costs to bring the weights from a file for every visit. All
// variants run by turns and the best of several turns counts, so that a busy machine slows all of
// them alike. `cpu` is the time that all threads together computed; the clock only means something
// on a quiet machine, the processor time nearly always.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/e2e/block_run.h"
#include "bench/e2e/gemm_roof.h"
#include "core/error.h"

namespace ballast::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kShareGoal = 0.80;     // of sgemm's GFLOP/s
constexpr double kNarrowGoal = 1.10;    // times the f32 block
constexpr double kStreamedGoal = 1.05;  // times the resident block

struct Rotation {
  BlockVariant variant;
  bool bf16_file = false;
  std::string_view against;
  double goal = 0;
};
constexpr std::array<Rotation, 5> kTurns = {{
    {{"f32", WeightFormat::stored, false}, false, "sgemm", kShareGoal},
    {{"bf16", WeightFormat::bf16, false}, false, "f32", kNarrowGoal},
    {{"f8_e4m3", WeightFormat::f8_e4m3, false}, false, "f32", kNarrowGoal},
    {{"f32 streamed", WeightFormat::stored, true}, false, "f32", kStreamedGoal},
    {{"bf16 streamed", WeightFormat::stored, true}, true, "bf16", kStreamedGoal},
}};

struct Options {
  std::vector<int> threads = {1, 2};
  std::int64_t tokens = 1024;
  int turns = 3;
  std::string folder = std::filesystem::temp_directory_path().string();
  bool json = false, profile = false;
};

struct Best {
  Times best = {1e30, 1e30};

  void include(const Times& t) {
    best.wall = std::min(best.wall, t.wall);
    best.cpu = std::min(best.cpu, t.cpu);
  }
};

struct Row {
  std::string_view name, against;
  Times time, ratio;  // ratio: of speeds for the share, else of times
  double flops = 0, goal = 0;
  bool at_least = false;

  bool met() const { return at_least ? ratio.wall >= goal : ratio.wall <= goal; }
};

// The block's weights in a file, removed at the end.
class BlockFile {
 public:
  BlockFile(const Options& o, const BlockSize& size, DType matrices)
      : path_(fmt::format("{}/ballast_block_{}_{}.safetensors", o.folder, getpid(),
                          name_of(matrices))) {
    write_block(path_, size.config, matrices);
    // Buffered: the question is what the copies cost, not how fast this machine's disk is.
    checkpoint_.emplace(WeightFiles::open(path_, DiskMode::buffered));
  }
  BlockFile(const BlockFile&) = delete;
  ~BlockFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const WeightFiles& checkpoint() const { return *checkpoint_; }

 private:
  std::string path_;
  std::optional<WeightFiles> checkpoint_;
};

struct Result {
  int threads = 0;
  Times sgemm;
  double sgemm_flops = 0;
  std::vector<Row> rows;
};

void print_profile(const BlockRun& run, int turns) {
  std::vector<std::pair<std::string, BlockRun::Spent>> all(run.spent().begin(), run.spent().end());
  std::ranges::sort(
      all, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double total = 0;
  for (const auto& [name, s] : all) total += s.seconds;
  fmt::print("\n{:<28} {:>6} {:>10} {:>7} {:>9}\n", "f32, by operation", "calls", "ms", "share",
             "GFLOP/s");
  for (const auto& [name, s] : all) {
    fmt::print("{:<28} {:>6} {:>10.2f} {:>6.1f}% {:>9}\n", name, s.calls / turns,
               1e3 * s.seconds / turns, 100 * s.seconds / total,
               s.flops > 0 ? fmt::format("{:.1f}", 1e-9 * s.flops / s.seconds) : "-");
  }
}

Result measure(const Options& o, const BlockSize& size, int threads, const WeightFiles& f32_file,
               const WeightFiles& bf16_file) {
  GemmRoof roof(size, threads);
  std::vector<std::unique_ptr<BlockRun>> runs;
  for (const Rotation& t : kTurns) {
    runs.push_back(std::make_unique<BlockRun>(size, t.variant, t.bf16_file ? bf16_file : f32_file,
                                              threads, o.profile && t.variant.name == "f32"));
    runs.back()->step();  // pages, caches
    runs.back()->forget_spent();
  }
  roof.step();
  Best sgemm;
  std::vector<Best> best(kTurns.size());
  for (int i = 0; i < o.turns; ++i) {
    sgemm.include(roof.step());
    for (std::size_t v = 0; v < runs.size(); ++v) best[v].include(runs[v]->step());
  }

  Result result = {threads, sgemm.best, roof.flops(), {}};
  for (std::size_t v = 0; v < runs.size(); ++v) {
    Row row = {kTurns[v].variant.name, kTurns[v].against, best[v].best, {},
               runs[v]->flops(),       kTurns[v].goal,    false};
    if (v == 0) {
      const double work = row.flops / roof.flops();
      row.ratio = {work * sgemm.best.wall / row.time.wall, work * sgemm.best.cpu / row.time.cpu};
      row.at_least = true;
    } else {
      const auto other = std::ranges::find(result.rows, row.against, &Row::name);
      row.ratio = {row.time.wall / other->time.wall, row.time.cpu / other->time.cpu};
    }
    result.rows.push_back(row);
  }
  if (o.profile && !o.json) print_profile(*runs[0], o.turns);
  return result;
}

void print(const Result& r) {
  const auto rate = [](double flops, double seconds) { return 1e-9 * flops / seconds; };
  fmt::print("\n{} thread{}, sgemm {:.1f} GFLOP/s by the clock, {:.1f} per processor second\n\n",
             r.threads, r.threads == 1 ? "" : "s", rate(r.sgemm_flops, r.sgemm.wall),
             rate(r.sgemm_flops, r.sgemm.cpu));
  fmt::print(
      "| weights       |      ms |  cpu ms | GFLOP/s | against |  ratio | cpu ratio | goal      | "
      "met |\n");
  fmt::print(
      "|---------------|--------:|--------:|--------:|---------|-------:|----------:|-----------|--"
      "---|\n");
  for (const Row& row : r.rows) {
    fmt::print(
        "| {:<13} | {:>7.1f} | {:>7.1f} | {:>7.1f} | {:<7} | {:>6.3f} | {:>9.3f} | {:<9} | {:<3} "
        "|\n",
        row.name, 1e3 * row.time.wall, 1e3 * row.time.cpu, rate(row.flops, row.time.wall),
        row.against, row.ratio.wall, row.ratio.cpu,
        fmt::format("{} {:.2f}", row.at_least ? ">=" : "<=", row.goal), row.met() ? "yes" : "no");
  }
}

Json as_json(const Result& r) {
  Json rows = Json::array();
  for (const Row& row : r.rows) {
    rows.push_back({{"weights", row.name},
                    {"seconds", row.time.wall},
                    {"cpu_seconds", row.time.cpu},
                    {"flops", row.flops},
                    {"against", row.against},
                    {"ratio", row.ratio.wall},
                    {"cpu_ratio", row.ratio.cpu},
                    {"goal", row.goal},
                    {"met", row.met()}});
  }
  return {{"threads", r.threads},
          {"sgemm_flops_per_second", r.sgemm_flops / r.sgemm.wall},
          {"sgemm_flops_per_cpu_second", r.sgemm_flops / r.sgemm.cpu},
          {"rows", std::move(rows)}};
}

void run(const Options& o) {
  const BlockSize size = block_size(o.tokens);
  const BlockFile f32_file(o, size, DType::f32), bf16_file(o, size, DType::bf16);
  Json all = Json::array();
  for (const int threads : o.threads) {
    const Result r = measure(o, size, threads, f32_file.checkpoint(), bf16_file.checkpoint());
    if (o.json) {
      all.push_back(as_json(r));
    } else {
      print(r);
      std::fflush(stdout);  // into a file too: the next thread count takes minutes
    }
  }
  if (o.json) fmt::print("{}\n", all.dump(2));
}

}  // namespace
}  // namespace ballast::bench

int main(int argc, char** argv) {
  ballast::bench::Options o;
  CLI::App app("One transformer block (Wan2.1 1.3B) forward and backward, against the BLAS");
  app.add_option("--threads", o.threads, "thread counts to measure");
  app.add_option("--tokens", o.tokens, "video tokens");
  app.add_option("--turns", o.turns, "runs of every variant; the best counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--folder", o.folder, "where the block's weights go, 280 MB, removed at the end");
  app.add_flag("--profile", o.profile, "also print where the f32 block's time goes");
  app.add_flag("--json", o.json, "print one JSON document");
  CLI11_PARSE(app, argc, argv);
  try {
    ballast::bench::run(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
