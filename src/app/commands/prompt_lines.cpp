#include "app/commands/prompt_lines.h"

#include "core/error.h"
#include "io/limits.h"
#include "memory/text_file.h"

namespace ballast {

std::vector<std::string> read_prompts(const std::string& path, std::size_t max_prompts) {
  const LineLimits limits = {.line_bytes = limits::kPromptBytes,
                             .file_bytes = limits::kPromptFileBytes};
  LineReader reader =
      path == "-" ? LineReader::standard_input(limits) : LineReader::open(path, limits);
  std::vector<std::string> prompts;
  for (FileLine line; reader.next(line);) {
    std::string_view text = line.text;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    if (prompts.size() == max_prompts) {
      fail(ErrorCode::input, "{}: more than {} prompts", reader.name(), max_prompts);
    }
    prompts.emplace_back(text);
  }
  if (prompts.empty()) fail(ErrorCode::input, "{} holds no prompt", reader.name());
  return prompts;
}

}  // namespace ballast
