#pragma once

#include <string>

#include "report/run_log.h"

namespace ballast {

// A run on one page: what it was, loss, learning rate, memory planned and measured over time per
// tier, where the time of a step went, the plan by phase and role, config, notes, environment.
// The page needs nothing else: no scripts, no other files, readable in light and dark. Everything
// that comes from a file is escaped. A history that was read from the log of a crashed run gives
// the page of what it did.
std::string html_report(const RunHistory& history);

// Mean of the losses around each step, as the loss curve shows it: an exponential mean over about
// a twentieth of the run, without the bias of its start. NaN where the loss was.
std::vector<double> smoothed(std::span<const double> losses);

}  // namespace ballast
