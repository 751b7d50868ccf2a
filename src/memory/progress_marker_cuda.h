#pragma once

#include <cstdint>

namespace ballast {

// `stream` writes `place` into a word of pinned host memory when it comes to it, also in a
// recording. A kernel: on an H200 (driver 580) no recording with cuStreamWriteValue32 came about.
void write_progress_marker(std::uint32_t* word, std::uint32_t position, void* stream);

}  // namespace ballast
