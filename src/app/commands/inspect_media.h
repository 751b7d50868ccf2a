#pragma once

#include <string>

namespace ballast {

// By its first bytes; false for what is no file or cannot be read.
bool is_media_file(const std::string& path);

// What `ballast inspect` prints of an image or a video: container, codec, size, rate, frames, and
// what the file says about how it was made.
std::string describe_media(const std::string& path, bool json);

}  // namespace ballast
