#pragma once

#include <functional>
#include <string>

#include "app/planning.h"

namespace ballast {

inline constexpr std::string_view kRunPlanFile = "plan.json";  // its name in a run's folder

// The page is a process beside the run, and a line of its plan.
void add_live_page(const OwnFlags& own, fit::Request& request);

// For train::TrainOptions::on_folder: writes the plan into the run's folder, as `ballast plan
// --json` with the map that the page shows ("map": plans_json()), and starts the page where --serve
// asks for it. What fails there is a warning.
std::function<void(const std::string& folder)> at_run_start(const OwnFlags& own,
                                                            const PlanTitle& title,
                                                            const fit::Request& request,
                                                            const fit::PlannedRun& run,
                                                            const PlanView& view);

}  // namespace ballast
