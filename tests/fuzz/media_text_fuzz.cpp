// Chunks of PNG, GIF and WebP files that Ballast reads itself. The first byte chooses:
//   'F'  a file as it is
//   'T'  a text: what is written into each of the three is read back

#include <string>

#include "fuzz.h"
#include "io/media_text.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

SourceFile stored(std::string_view bytes) {
  static MemoryFile file("image");
  return FileSource(file.write(bytes)).open();
}

void check_text(std::string_view text) {
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\10\2\0\0\0\x90\x77\x53\xde", 33);
  add_png_text(png, text);
  require(read_media_text(stored(png)) == text);

  std::string gif("GIF89a\1\0\1\0\0\0\0", 13);
  gif += gif_comment(text);
  gif += ';';
  require(read_media_text(stored(gif)) == text);
  require(gif_is_whole(stored(gif)));

  const std::string chunk = webp_text_chunk(text);
  std::string webp = "RIFF";
  append_u32_le(webp, 4 + chunk.size());
  webp += "WEBP" + chunk;
  require(read_media_text(stored(webp)) == text);
}

}  // namespace

void one_input(Input input) {
  const std::uint8_t kind = input.byte();
  if (kind == 'T') {
    // A PNG's text ends at a zero byte; one that is not UTF-8 is not taken for ours.
    const std::string_view text = input.rest();
    if (!first_invalid_utf8(text) && text.find('\0') == text.npos) check_text(text);
  } else if (kind == 'F') {
    const SourceFile file = stored(input.rest());
    require(!first_invalid_utf8(read_media_text(file)));
    gif_is_whole(file);
    accepts([&] { read_webp_animation(file); });
  }
}

}  // namespace ballast::fuzz
