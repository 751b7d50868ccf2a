#pragma once

#include <string>

#include "data/dataset.h"
#include "train/config/config.h"

namespace ballast::train {

// 16 hexadecimal digits of what decides the numbers that training makes: settings as they were
// understood (file and flags alike), the schedule, the dataset's samples and how its file uses
// them. Not of where files lie, how memory is used, what is logged, shown or evaluated, or when a
// run saves and ends: results that differ in such things alone are the same files. The base model
// has a hash of its own.
std::string config_hash(const TrainConfig& c, const ScheduleOptions& schedule,
                        const data::Dataset& dataset);

}  // namespace ballast::train
