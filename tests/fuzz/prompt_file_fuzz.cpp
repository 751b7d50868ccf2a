// Prompts, one per line: of a training run without a dataset, of previews with their options, of
// the commands `sample` and `generate`, and as the text encoder gets them.

#include "app/commands/prompt_lines.h"
#include "data/clean_text.h"
#include "fuzz.h"
#include "io/utf8.h"
#include "train/config/config_preview.h"
#include "train/config/prompt_file.h"

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
  accepts([&] {
    constexpr std::size_t kMaxPrompts = 100;
    const std::vector<std::string> prompts = read_prompts(stored.path(), kMaxPrompts);
    require(!prompts.empty() && prompts.size() <= kMaxPrompts);
    for (const std::string& p : prompts) require(!p.empty() && p.find('\n') == p.npos);
  });
  while (input.size() > 0) {
    const std::string_view line = input.line();
    accepts([&] { train::preview_clip(line, {}, "prompts.txt line 1"); });
    require(!first_invalid_utf8(data::clean_text(line)));
  }
}

}  // namespace ballast::fuzz
