#pragma once

#include <string>

#include "app/planning.h"

namespace ballast {

// `ballast train` and `ballast plan` for an encoder-decoder of the T5 family.
void train_text(const OwnFlags& own, const std::string& command);
void plan_text(const OwnFlags& own);

}  // namespace ballast
