// A golden file for `ballast verify`: a line of bytes that fill its tensors, then tensors and
// metadata line by line (fuzz.h).

#include "app/golden/file.h"
#include "fuzz.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile stored("golden.safetensors");
  const std::string_view fill = input.line();
  stored.write(safetensors_of_lines(input.rest(), fill));
  accepts([&] {
    const GoldenFile golden = GoldenFile::open(stored.path());
    accepts([&] {
      JsonReader config = golden.config();
      config.skip();
      config.finish();
    });
    for (const SafetensorsEntry& e : golden.entries()) {
      require(golden.has(e.name));
      if (const GoldenStats* s = golden.stats(e.name)) require(s->max >= 0 && s->err >= 0);
      accepts([&] {
        const GoldenTensor t = golden.expected(e.name);
        require(t.data.size() == e.bytes && t.shape == e.shape);
      });
    }
  });
}

}  // namespace ballast::fuzz
