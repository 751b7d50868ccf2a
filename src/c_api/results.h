#pragma once

#include "ballast/ballast.h"
#include "c_api/guard.h"

namespace ballast::c_api {

// What the library answers, as the interface's header describes it.
Json json_of(const v1::MemoryUse& m);
Json json_of(const v1::Plan& p);
Json json_of(const v1::ModelInfo& i);
Json json_of(const v1::StepResult& r);
Json json_of(const v1::TrainStep& s);
Json json_of(const v1::TrainResult& r);

}  // namespace ballast::c_api
