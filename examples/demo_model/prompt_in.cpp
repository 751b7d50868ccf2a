#include "examples/demo_model/prompt_in.h"

#include "io/json_reader.h"

namespace ballast::demo {

std::string prompt_in(const MediaInfo& info) {
  std::string prompt;
  if (info.comment.empty()) return prompt;
  JsonReader json({.text = info.comment, .path = "comment", .rule = "json"});
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "ballast.prompt") {
      prompt = json.string();
    } else {
      json.skip();
    }
  }
  return prompt;
}

}  // namespace ballast::demo
