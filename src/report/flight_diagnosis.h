#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "report/flight_record.h"

namespace ballast {

enum class Outcome : std::uint8_t { finished, stopped, failed, running, died };
std::string_view name_of(Outcome o);

// Whether the kernel ended the run for want of memory.
enum class OutOfMemory : std::uint8_t {
  no,       // the run did not die, or the kernel's counters did not move
  unknown,  // nothing to go by: another machine, restarted since
  possible,
  likely,
  certain,  // the kernel's log names the process
};
std::string_view name_of(OutOfMemory o);

// What became of a run, by its flight record and by what this machine still knows.
struct FlightDiagnosis {
  Outcome outcome = Outcome::died;
  OutOfMemory out_of_memory = OutOfMemory::no;
  std::string headline;               // one sentence
  std::string cause;                  // of a run that died: the end of it, "the process was ..."
  std::vector<std::string> findings;  // sentences with the numbers behind it
  std::vector<Advice> advice;         // empty when there is nothing to do
};

// root stands for "/": /proc, the control groups and /dev/kmsg are read below it. now: seconds
// since 1970.
FlightDiagnosis diagnose(const FlightRecord& record, double now,
                         const std::filesystem::path& root = "/");

// For people: headline, numbers planned, allowed and measured, findings, advice.
std::string describe(const FlightRecord& record, const FlightDiagnosis& diagnosis);

}  // namespace ballast
