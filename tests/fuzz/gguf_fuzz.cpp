// A GGUF file. Tensors that are accepted lie in the file; their blocks expand.

#include <algorithm>
#include <vector>

#include "fuzz.h"
#include "io/gguf_file.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile file("model.gguf");
  file.write(input.rest());
  accepts([&] {
    const GgufFile gguf = GgufFile::open(file.path(), DiskMode::buffered);
    for (const GgufTensor& t : gguf.tensors()) {
      require(t.offset <= gguf.file().size() && t.bytes <= gguf.file().size() - t.offset);
      require(static_cast<std::uint64_t>(t.shape.elements()) == t.elements());
      if (t.type->plain && !memory_dtype(*t.type->plain)) continue;
      const std::uint64_t blocks = std::min<std::uint64_t>(t.bytes / t.type->bytes, 4);
      std::vector<float> values(blocks * t.type->elements);
      accepts([&] { gguf.read(t, 0, values); });
    }
  });
}

}  // namespace ballast::fuzz
