// A configuration file, TOML or JSON (first byte 'J'). Every key of an accepted one can be asked
// for in every way.

#include <string>

#include "fuzz.h"
#include "io/toml_table.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

void ask(const TomlTable& table, int depth) {
  for (const std::string_view key : table.keys()) {
    require(!first_invalid_utf8(key) && table.has(key));
    const auto each = [](auto... reads) { (accepts(reads), ...); };
    each([&] { table.string(key); }, [&] { table.integer(key); }, [&] { table.number(key); },
         [&] { table.boolean(key); }, [&] { table.numbers(key); }, [&] { table.integers(key); },
         [&] { table.strings(key); }, [&] { table.number_rows(key); });
    require(!first_invalid_utf8(describe(*table.find(key))));
    if (depth == 3) continue;
    accepts([&] {
      for (const TomlTable& t : table.tables(key)) ask(t, depth + 1);
    });
  }
  accepts([&] { table.require_string("seed"); });
  accepts([&] { table.finish(); });
}

}  // namespace

void one_input(Input input) {
  const bool json = input.byte() == 'J';
  accepts([&] {
    const TomlFile file =
        json ? TomlFile::parse_json(input.rest(), "fuzz") : TomlFile::parse(input.rest(), "fuzz");
    require(file.text() == input.rest());
    // One that nobody has asked anything: the first key is unknown.
    accepts([&] { file.root().finish(); });
    ask(file.root(), 0);
  });
}

}  // namespace ballast::fuzz
