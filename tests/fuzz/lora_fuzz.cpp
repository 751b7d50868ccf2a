// A LoRA file: a line of bytes that fill its tensors, then tensors line by line (fuzz.h). One that
// is accepted is written in every format and read back.

#include <set>
#include <string>

#include "fuzz.h"
#include "models/wan/lora_file.h"
#include "models/wan/lora_read.h"
#include "models/wan/lora_write.h"

namespace ballast::fuzz {
namespace {

std::set<std::string> names_of(const wan::LoraReader& lora) {
  std::set<std::string> names;
  for (const wan::LoraModule& m : lora.modules()) names.insert(m.name);
  return names;
}

void check_written(const wan::LoraReader& lora) {
  static const std::string path = memory_folder() + "/written.safetensors";
  for (const auto format :
       {wan::LoraFormat::comfy, wan::LoraFormat::kohya, wan::LoraFormat::peft}) {
    accepts([&] {
      wan::write_lora(path, lora.modules(), {.format = format});
      const wan::LoraReader again = wan::LoraReader::open(path, nullptr, DiskMode::buffered);
      const std::set<std::string> before = names_of(lora), after = names_of(again);
      for (const std::string& name : before) require(after.contains(name));
    });
  }
}

}  // namespace

void one_input(Input input) {
  static MemoryFile stored("lora.safetensors");
  const std::string_view fill = input.line();
  stored.write(safetensors_of_lines(input.rest(), fill));
  accepts([&] {
    const WeightFiles checkpoint = WeightFiles::open(stored.path(), DiskMode::buffered);
    const auto found = wan::recognise_lora(checkpoint);
    if (found) check_notes(found->problems);
  });
  accepts([&] {
    const wan::LoraReader lora = wan::LoraReader::open(stored.path(), nullptr, DiskMode::buffered);
    for (const wan::LoraModule& m : lora.modules()) {
      require(m.rank >= 0 && (m.rank == 0 || m.in() * m.rank == m.down.elements()));
    }
    if (fill.ends_with('w')) check_written(lora);
  });
}

}  // namespace ballast::fuzz
