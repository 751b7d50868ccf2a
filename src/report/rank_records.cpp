#include "report/rank_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "report/run_info.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "ranks";

// The most that a job has (dist/host_memory.h): a damaged record names no more.
constexpr int kMaxRecords = 256;

}  // namespace

std::string flight_record_path(const std::string& run_folder, int rank) {
  if (rank == 0) return fmt::format("{}/{}", run_folder, kFlightFile);
  const std::string folder = fmt::format("{}/{}", run_folder, kFolder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_io(folder, "make the folder for records of ranks", error.value());
  return fmt::format("{}/{}.{}", folder, kFlightFile, rank);
}

void remove_rank_records(const std::string& run_folder) {
  std::error_code error;
  fs::directory_iterator at(fmt::format("{}/{}", run_folder, kFolder), error), end;
  const std::string begin = fmt::format("{}.", kFlightFile);
  for (; !error && at != end; at.increment(error)) {
    std::error_code kept;
    if (at->path().filename().string().starts_with(begin)) fs::remove(at->path(), kept);
  }
}

std::vector<RankRecord> read_rank_records(const std::string& path, const FlightRecord& first,
                                          double now) {
  std::vector<RankRecord> all;
  if (first.start.ranks <= 1) return all;
  const std::string folder = fs::path(path).parent_path().string();
  for (int r = 0; r < std::min(first.start.ranks, kMaxRecords); ++r) {
    RankRecord& rank = all.emplace_back();
    rank.rank = r;
    rank.path = r == 0 ? path : fmt::format("{}/{}/{}.{}", folder, kFolder, kFlightFile, r);
    try {
      rank.record = r == 0 ? first : read_flight_record(rank.path);
      rank.diagnosis = diagnose(*rank.record, now);
    } catch (const Error& e) {
      rank.problem = e.what();
    }
  }
  std::ranges::stable_sort(all, [](const RankRecord& a, const RankRecord& b) {
    if (!a.record || !b.record) return a.record.has_value() > b.record.has_value();
    return a.record->updated < b.record->updated;
  });
  return all;
}

std::string describe(const std::vector<RankRecord>& ranks) {
  if (ranks.empty()) return "";
  std::string text = fmt::format(
      "ranks, by the times of their last words\n  {:<5} {:>8}  {:<20} {:>10} {:>10}  {}\n", "rank",
      "process", "last word", "RAM", "most", "state");
  for (const RankRecord& r : ranks) {
    if (!r.record) {
      text += fmt::format("  {:<5} {}\n", r.rank, r.problem);
      continue;
    }
    const FlightRecord& record = *r.record;
    text += fmt::format("  {:<5} {:>8}  {:<20} {:>10} {:>10}  {}, step {}, phase {}\n", r.rank,
                        record.pid, iso_time(record.updated), to_string(record.state.measured.ram),
                        to_string(record.state.most.ram), name_of(r.diagnosis.outcome),
                        record.state.step, name_of(record.state.phase));
    if (r.rank != 0 && !record.note.empty()) {
      text += fmt::format("  {:<5} {}\n", "", printable(record.note, 240));
    }
  }
  return text;
}

}  // namespace ballast
