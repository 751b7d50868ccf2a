#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_source.h"

namespace ballast {

// The text that an image file carries about itself, in the containers for which FFmpeg neither
// writes nor reads it:
//   PNG   a chunk "parameters": tEXt where the text is ASCII, else iTXt (UTF-8)
//   GIF   a comment extension
//   WebP  an XMP packet whose dc:description it is
using MediaBytes = std::string;  // bytes, whatever they mean

// A PNG chunk, a GIF extension, a RIFF chunk with the text in it.
MediaBytes png_text_chunk(std::string_view text);
MediaBytes gif_comment(std::string_view text);
MediaBytes webp_text_chunk(std::string_view text);

// Puts the chunk behind a PNG's header. `png` is whole and starts with its signature.
void add_png_text(MediaBytes& png, std::string_view text);

// The text of such a file, empty where it has none or is none of these. Walks over the chunks
// without reading images; broken chunks end the walk.
std::string read_media_text(const SourceFile& file);

// Whether a GIF's blocks go on to its end mark: FFmpeg takes one that was cut for a shorter one.
// True for what is no GIF.
bool gif_is_whole(const SourceFile& file);

// An animated WebP, from its chunks.
struct WebpAnimation {
  std::int64_t width = 0, height = 0;
  std::vector<std::int64_t> durations_ms = {};  // one per frame
};
// Without frames where the file is no animated WebP. Fails with ErrorCode::input where its chunks
// reach past its end.
WebpAnimation read_webp_animation(const SourceFile& file);

// Chunks of files that are written by hand.
void append_u16_le(MediaBytes& out, std::uint64_t value);
void append_u24_le(MediaBytes& out, std::uint64_t value);
void append_u32_le(MediaBytes& out, std::uint64_t value);

}  // namespace ballast
