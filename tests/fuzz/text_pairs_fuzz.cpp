// Training texts. The first byte chooses JSON Lines ('J'), CSV ('C') or TSV ('T').

#include <optional>

#include "data/text_pairs.h"
#include "fuzz.h"

namespace ballast::fuzz {
namespace {

const std::string& stored(std::uint8_t kind, std::string_view text) {
  static MemoryFile lines("pairs.jsonl"), commas("pairs.csv"), tabs("pairs.tsv");
  return (kind == 'C' ? commas : kind == 'T' ? tabs : lines).write(text);
}

}  // namespace

void one_input(Input input) {
  const std::uint8_t kind = input.byte();
  const std::string& path = stored(kind, input.rest());
  accepts([&] {
    data::RecordReader reader = data::RecordReader::open(path);
    std::optional<data::PairColumns> columns;
    std::uint64_t line = 0;
    for (data::RawRecord record; reader.next(record);) {
      require(record.line > line && reader.done() <= reader.size());
      line = record.line;
      const bool header = !columns && reader.format() != data::RecordFormat::json_lines;
      if (!columns) columns.emplace(data::TextPairOptions{}, reader.format(), record, path);
      if (!header) accepts([&] { columns->parse(record); });
    }
  });
}

}  // namespace ballast::fuzz
