// A run log: any content gives a history and a page; what is known of the run is read back.

#include "fuzz.h"
#include "io/utf8.h"
#include "report/html_report.h"
#include "report/run_log.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("run_log.jsonl");
  file.write(input.rest());
  const RunHistory history = read_run_log(file.path());
  const std::string page = html_report(history);
  require(!first_invalid_utf8(page) && page.find("<script") == std::string::npos);
  if (history.info) require(run_info_from_json(to_json(*history.info)) == *history.info);
  // Resuming cuts the log at a step and leaves one that can be read.
  const std::int64_t steps = std::ssize(history.steps) / 2;
  if (steps == 0) return;
  RunLog(file.path(), steps).event(steps, "resume", "");
  require(read_run_log(file.path()).unreadable <= history.unreadable);
}

}  // namespace ballast::fuzz
