// musubi-tuner's list of media, a JSON object on each line. The first byte chooses what the list
// holds, 'V' videos or 'I' images; with 'v' and 'i' media that are cached count as encoded.

#include "data/encoding_work.h"
#include "data/scan.h"
#include "fuzz.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

// A clip beside the list, and its cache.
void write_media() {
  static MemoryFile clip("media/a.mp4"), image("media/b.png");
  static MemoryFile text("cache/a_wan_te.safetensors");
  static MemoryFile latent("cache/a_00000-001_0032x0032_wan.safetensors");
  clip.write("clip");
  image.write("image");
  text.write(safetensors_of_lines("varlen_t5_bfloat16 BF16 4,8\n=caption1 a cat\n", "\1"));
  latent.write(safetensors_of_lines("latents_1x4x4_float32 F32 2,1,4,4\n", "\1"));
}

void check_name(const std::string& name) {
  require(name.find('/') == std::string::npos && name.find('\0') == std::string::npos);
  require(!first_invalid_utf8(name));
}

void check_work(const data::EncodingWork& work) {
  for (const data::TextWork& t : work.texts) {
    require(t.set < work.sets.size() && !first_invalid_utf8(t.caption));
    check_name(t.name);
  }
  for (const data::MediaWork& m : work.media) {
    require(m.set < work.sets.size());
    check_name(m.name);
  }
  for (const data::SkippedFile& s : work.skipped) check_notes({s.reason});
}

}  // namespace

void one_input(Input input) {
  static MemoryFile list("media/list.jsonl");
  static const bool written = (write_media(), true);
  require(written);
  const std::uint8_t kind = input.byte();
  list.write(input.rest());
  data::MusubiDataset dataset;
  dataset.media = list.path();
  dataset.cache = memory_folder() + "/cache";
  dataset.video = kind == 'V' || kind == 'v';
  data::DatasetRequest request;
  request.needs = {.latent_channels = 2, .text_len = 4, .text_dim = 8};
  data::EncodingWork work;
  data::DatasetContent content;
  content.work = &work;
  content.musubi =
      kind == 'v' || kind == 'i' ? data::MusubiMedia::missing_only : data::MusubiMedia::open_all;
  accepts([&] {
    data::list_musubi_work(dataset, request, content);
    check_work(work);
    check_notes(content.notes);
  });
}

}  // namespace ballast::fuzz
