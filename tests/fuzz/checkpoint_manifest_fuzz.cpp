// manifest.json ('M') and trainer.json ('T') of a training checkpoint. Written again, an accepted
// one is read back the same.

#include "fuzz.h"
#include "train/checkpoint/checkpoint_manifest.h"

namespace ballast::fuzz {

void one_input(Input input) {
  const bool manifest = input.byte() == 'M';
  const auto source = [](std::string_view text) {
    return JsonSource{.text = text, .path = "fuzz", .rule = "fuzz"};
  };
  const auto check = [&](auto parse) {
    const auto read = parse(source(input.rest()));
    const std::string text = to_json(read);
    require(to_json(parse(source(text))) == text);
    return read;
  };
  accepts([&] {
    if (!manifest) {
      check(train::parse_trainer_state);
      return;
    }
    for (const auto& file : check(train::parse_manifest).files) {
      require(!file.name.empty() && file.name.find('/') == std::string::npos && file.name != "..");
    }
  });
}

}  // namespace ballast::fuzz
