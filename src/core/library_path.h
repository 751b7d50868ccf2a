#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// LD_LIBRARY_PATH without its empty and relative folders, which mean the current one: libraries
// that are loaded later (FFmpeg, cuDNN, libcurl) would be taken from there, and a folder of
// downloads may hold a planted one. nullopt: there is none of these.
std::optional<std::string> absolute_library_path(std::string_view path);

// Starts the program again where LD_LIBRARY_PATH has such folders: the loader reads the variable
// before main and never again. Returns where there is nothing to do. argv: main's.
void use_absolute_library_path(char** argv);

}  // namespace ballast
