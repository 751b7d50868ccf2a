#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/golden/compare.h"
#include "app/golden/results.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "train/run/device_choice.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMissesShown = 8;  // per file, on stderr

struct Row {
  std::string file, case_name, policy;
  std::vector<Comparison> comparisons;
  std::size_t tensors = 0;     // stored results that were compared
  bool only_computed = false;  // no results are stored; ours were written

  bool pass() const {
    return std::all_of(comparisons.begin(), comparisons.end(),
                       [](const Comparison& c) { return c.pass; });
  }
  std::string_view verdict() const { return only_computed ? "computed" : pass() ? "ok" : "MISS"; }
};

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  for (const MemoryPolicy& p : named_policies()) names.push_back(p.name);
  return names;
}

std::vector<MemoryPolicy> chosen_policies(const std::string& name) {
  if (name == "all") return {named_policies().begin(), named_policies().end()};
  if (auto policy = find_policy(name)) return {std::move(*policy)};
  std::vector<std::string_view> known = policy_names();
  known.push_back("all");
  fail(ErrorCode::usage,
       fmt::format("there is no policy {}{}", printable(name), suggestion(name, known)),
       {{"--policy NAME", "where NAME is one of " + joined(known)}});
}

const GoldenCase& case_of(const GoldenFile& file) {
  if (const GoldenCase* found = find_golden_case(file.case_name())) return *found;
  std::vector<std::string_view> known;
  for (const GoldenCase& c : golden_cases()) known.push_back(c.name);
  fail(ErrorCode::input, "{}: this version cannot recompute the case \"{}\"; it knows {}",
       file.path(), printable(file.case_name()), joined(known));
}

Json as_json(const Comparison& c) {
  // Infinity is no JSON number.
  Json j = {{"tensor", c.tensor}, {"measure", c.measure}, {"limit", nullptr}, {"pass", c.pass}};
  if (std::isfinite(c.limit)) j["limit"] = c.limit;
  j["error"] = std::isfinite(c.error) ? Json(c.error) : Json(nullptr);
  if (!c.detail.empty()) j["detail"] = c.detail;
  return j;
}

Json as_json(const Row& row) {
  Json tensors = Json::array();
  for (const Comparison& c : row.comparisons) tensors.push_back(as_json(c));
  const Comparison* w = worst(row.comparisons);
  return {{"file", row.file},
          {"case", row.case_name},
          {"policy", row.policy},
          {"verdict", row.verdict()},
          {"compared", row.tensors},
          {"worst", w ? as_json(*w) : Json(nullptr)},
          {"tensors", std::move(tensors)}};
}

// ballast verify: recomputes golden files and compares.
class Verify : public Command {
 public:
  void declare(CLI::App& app) override;
  void run() override;

 private:
  void open_files();
  void run_file(const GoldenFile& file, const std::vector<MemoryPolicy>& policies);
  std::vector<GoldenTensor> recompute(const GoldenFile& file, const MemoryPolicy& policy) const;
  Row compare(const GoldenFile& file, std::span<const GoldenTensor> computed, std::string policy);
  void write(const GoldenFile& file, std::span<const GoldenTensor> tensors) const;
  void print_heading() const;
  void print_row(const Row& row) const;
  void report_misses(const Row& row) const;

  std::vector<std::string> paths_;
  std::string dtype_name_ = "f32", policy_name_ = "resident", out_;
  MachineOptions machine_;
  VerifyOptions options_;

  std::vector<GoldenFile> files_;
  std::size_t file_width_ = 4, case_width_ = 4, policy_width_ = 6;
  Json rows_ = Json::array();
  int rows_total_ = 0, rows_missed_ = 0;
};

const RegisterCommand<Verify> kVerify("verify",
                                      "recompute golden files on this machine and compare");

void Verify::declare(CLI::App& app) {
  app.add_option("FILE", paths_, "golden files (metadata format = ballast-golden-1)")->required();
  machine_.device = DeviceChoice::cpu;
  declare_machine(app, machine_, {"device", "threads", "json"});
  app.add_option("--dtype", dtype_name_, "what networks compute in: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_flag("--fp8-matmul", options_.fp8_matmul,
               "products of blocks in fp8; golden files have no limit for it, errors are shown");
  app.add_option("--policy", policy_name_,
                 "how memory is used: " + joined(policy_names()) + ", or all of them");
  app.add_option("--out", out_, "folder for the recomputed tensors, one file per golden file");
}

void Verify::run() {
  options_.threads = machine_.threads;
  // Says what a GPU lacks, before anything is computed.
  options_.device = train::this_machine(machine_).backend.device;
  options_.dtype = dtype_name_ == "bf16" ? DType::bf16 : DType::f32;
  const std::vector<MemoryPolicy> policies = chosen_policies(policy_name_);
  open_files();
  for (const MemoryPolicy& p : policies) policy_width_ = std::max(policy_width_, p.name.size());
  if (!machine_.json) print_heading();
  for (const GoldenFile& file : files_) {
    while_doing("verifying " + file.path(), [&] { run_file(file, policies); });
  }
  if (machine_.json) {
    print(Json{{"rows", rows_}, {"missed", rows_missed_}}.dump(2, ' ', false,
                                                               Json::error_handler_t::replace) +
          "\n");
  }
  if (rows_missed_ > 0) {
    fail(ErrorCode::differ, "{} of {} comparisons missed their limits", rows_missed_, rows_total_);
  }
}

// All of them before any is computed: what is no golden file is refused at once.
void Verify::open_files() {
  std::map<std::string, std::string> outputs;
  for (const std::string& path : paths_) {
    files_.push_back(while_doing("opening " + path, [&] { return GoldenFile::open(path); }));
    const GoldenFile& file = files_.back();
    case_of(file);
    file_width_ = std::max(file_width_, file.name().size());
    case_width_ = std::max(case_width_, file.case_name().size());
    const auto [other, added] = outputs.emplace(file.name(), file.path());
    if (!added && !out_.empty()) {
      fail(ErrorCode::usage, "{} and {} would both be written to {}/{}", other->second, file.path(),
           out_, file.name());
    }
  }
  if (out_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(out_, error);
  if (error) fail_io(out_, "make the folder", error.value());
}

std::vector<GoldenTensor> Verify::recompute(const GoldenFile& file,
                                            const MemoryPolicy& policy) const {
  VerifyOptions options = options_;
  options.policy = policy;
  return while_doing(fmt::format("recomputing the case {}", file.case_name()),
                     [&] { return case_of(file).recompute(file, options); });
}

// With several policies the first is compared and written; the others must also give its bits.
void Verify::run_file(const GoldenFile& file, const std::vector<MemoryPolicy>& policies) {
  const bool network = case_of(file).network;
  std::vector<GoldenTensor> first;
  for (const MemoryPolicy& policy : policies) {
    std::vector<GoldenTensor> computed = recompute(file, policy);
    if (first.empty() && !out_.empty()) write(file, computed);
    Row row = compare(file, computed, network ? policy.name : "-");
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool same = i < computed.size() && same_bits(first[i], computed[i]);
      if (same) continue;
      row.comparisons.push_back({.tensor = first[i].name,
                                 .measure = "bits",
                                 .error = 1,
                                 .detail = "other bits than with policy " + policies[0].name});
    }
    if (machine_.json) {
      rows_.push_back(as_json(row));
    } else {
      print_row(row);
    }
    report_misses(row);
    ++rows_total_;
    if (!row.pass()) ++rows_missed_;
    if (!network) return;
    if (first.empty()) first = std::move(computed);
  }
}

Row Verify::compare(const GoldenFile& file, std::span<const GoldenTensor> computed,
                    std::string policy) {
  const bool network = case_of(file).network;
  std::optional<DType> dtype = network ? options_.dtype : DType::f32;
  if (network && options_.fp8_matmul) dtype.reset();  // no limit is known
  Row row = {.file = file.name(),
             .case_name = file.case_name(),
             .policy = std::move(policy),
             .comparisons = compare_results(file, computed, dtype)};
  row.tensors = to_size(std::count_if(row.comparisons.begin(), row.comparisons.end(),
                                      [&](const Comparison& c) { return file.has(c.tensor); }));
  row.only_computed = row.comparisons.empty();
  if (row.only_computed && out_.empty()) {
    fail(ErrorCode::input, fmt::format("{} holds no results to compare with", file.path()),
         {{"--out FOLDER", "writes what Ballast computes"}});
  }
  return row;
}

void Verify::write(const GoldenFile& file, std::span<const GoldenTensor> tensors) const {
  SafetensorsWriter writer({.metadata = {{"case", file.case_name()}}});
  for (const GoldenTensor& t : tensors) writer.add(t.name, t.dtype, t.shape, t.data);
  writer.write((std::filesystem::path(out_) / file.name()).string());
}

void Verify::print_heading() const {
  print(fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>8}  {:>9}  {:>9}  {:<8}  {}\n", "file", file_width_,
                    "case", case_width_, "policy", policy_width_, "compared", "error", "limit",
                    "verdict", "worst tensor"));
}

void Verify::print_row(const Row& row) const {
  const Comparison* w = worst(row.comparisons);
  const std::string error = !w ? "-" : fmt::format("{:.3g}", w->error);
  const std::string limit = !w                     ? "-"
                            : w->limit == 0        ? "exact"
                            : std::isinf(w->limit) ? "no limit"
                                                   : fmt::format("{:.3g}", w->limit);
  const std::string tensor = !w ? "-" : fmt::format("{} ({})", printable(w->tensor), w->measure);
  print(fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>8}  {:>9}  {:>9}  {:<8}  {}\n", printable(row.file),
                    file_width_, row.case_name, case_width_, row.policy, policy_width_,
                    row.comparisons.size(), error, limit, row.verdict(), tensor));
}

void Verify::report_misses(const Row& row) const {
  std::size_t misses = 0;
  for (const Comparison& c : row.comparisons) {
    if (c.pass || ++misses > kMissesShown) continue;
    log::warn("{}: {} ({} {:.3g}, limit {:.3g}): {}", row.file, printable(c.tensor), c.measure,
              c.error, c.limit, c.detail);
  }
  if (misses > kMissesShown) {
    log::warn("{}: {} more tensors missed their limits", row.file, misses - kMissesShown);
  }
}

}  // namespace
}  // namespace ballast
