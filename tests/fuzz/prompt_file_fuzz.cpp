// Prompts, one per line: of a training run without a dataset, of previews with their options, and
// as the text encoder gets them.

#include "data/clean_text.h"
#include "fuzz.h"
#include "io/utf8.h"
#include "train/config_preview.h"
#include "train/prompt_file.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile stored("prompts.txt");
  stored.write(input.rest());
  accepts([&] {
    const train::PromptFile file(stored.path());
    require(file.count() > 0);
    for (std::int64_t i = 0; i < file.count(); ++i) {
      accepts([&] {
        const std::string prompt = file.at(i);
        require(!prompt.empty() && !first_invalid_utf8(prompt));
      });
    }
  });
  while (input.size() > 0) {
    const std::string_view line = input.line();
    accepts([&] { train::preview_clip(line, {}, "prompts.txt line 1"); });
    require(!first_invalid_utf8(data::clean_text(line)));
  }
}

}  // namespace ballast::fuzz
