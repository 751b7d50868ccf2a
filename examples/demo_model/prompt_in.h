#pragma once

#include <string>

#include "io/media_reader.h"

namespace ballast::demo {

// What a clip of `ballast sample` was made for, as the file says it; empty where it does not.
std::string prompt_in(const MediaInfo& info);

}  // namespace ballast::demo
