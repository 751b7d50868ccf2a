// captions.json of a folder of media ('J'), or one clip's caption file ('C').

#include "data/media_folder.h"
#include "fuzz.h"
#include "io/utf8.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile clip("media/a.mp4"), json("media/captions.json"), caption("captions/a.txt");
  if (input.byte() == 'C') {
    caption.write(input.rest());
    accepts([&] { require(!first_invalid_utf8(data::read_caption(caption.path()))); });
    return;
  }
  json.write(input.rest());
  accepts([&] {
    std::vector<std::string> notes;
    data::visit_media(
        memory_folder() + "/media", {.shuffles = 1},
        [](const data::MediaItem& item) {
          require(!item.captions.empty());
          for (const std::string& c : item.captions) require(!first_invalid_utf8(c));
        },
        notes);
    check_notes(notes);
  });
}

}  // namespace ballast::fuzz
