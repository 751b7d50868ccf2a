#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/flight_diagnosis.h"
#include "report/flight_record.h"

namespace ballast {

// The flight records of a run's ranks: rank 0 writes flight_record, rank R ranks/flight_record.R.

// The path for a rank in the run's folder; the folder `ranks` is made where it is needed.
std::string flight_record_path(const std::string& run_folder, int rank);
// Records of ranks but the first are removed.
void remove_rank_records(const std::string& run_folder);

struct RankRecord {
  int rank = 0;
  std::string path;
  std::optional<FlightRecord> record;
  FlightDiagnosis diagnosis;
  std::string problem;  // why there is no record
};

// Of all ranks of the run that rank 0's record, at `path`, belongs to; empty: it had one. now: as
// diagnose() takes it.
std::vector<RankRecord> read_rank_records(const std::string& path, const FlightRecord& first,
                                          double now);

// A table with a line for each rank, by the times of their last words.
std::string describe(const std::vector<RankRecord>& ranks);

}  // namespace ballast
