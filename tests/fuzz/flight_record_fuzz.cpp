// A flight record, and what doctor says of it. The first byte chooses:
//   'R'  a file as it is
//   'F'  the beginnings of header, texts and states, put in their places with right checksums

#include <cstring>

#include "core/crc32c.h"
#include "fuzz.h"
#include "report/flight_diagnosis.h"
#include "report/flight_record.h"

namespace ballast::fuzz {
namespace {

// As in flight_record.cpp.
constexpr std::size_t kFileBytes = 8192, kNumbers = 152, kHeaderCrc = 3548;
constexpr std::size_t kTexts[] = {152, 216, 472, 1496, 2520};  // boot id, host, command ...
constexpr std::size_t kSlots[] = {4096, 4608};
constexpr std::size_t kSlotNote = 120, kSlotCrc = 364, kTextBytes = 40;

void put_crc(std::string& file, std::size_t begin, std::size_t bytes) {
  const std::uint32_t crc = crc32c(bytes_of(std::string_view(file).substr(begin, bytes)));
  std::memcpy(file.data() + begin + bytes, &crc, sizeof crc);
}

std::string record_of(std::string_view rest) {
  std::string file(kFileBytes, '\0');
  const auto put = [&](std::size_t at, std::size_t bytes) {
    bytes = std::min(bytes, rest.size());
    std::memcpy(file.data() + at, rest.data(), bytes);
    rest.remove_prefix(bytes);
  };
  for (const std::size_t slot : kSlots) {
    put(slot, kSlotNote);
    put(slot + kSlotNote, kTextBytes);
    put_crc(file, slot, kSlotCrc);
  }
  put(16, kNumbers - 16);
  for (const std::size_t text : kTexts) put(text, kTextBytes);
  std::memcpy(file.data(), "BLGRECRD\1\0\0\0\0\x20\0\0", 16);
  put_crc(file, 0, kHeaderCrc);
  return file;
}

}  // namespace

void one_input(Input input) {
  static MemoryFile file("flight_record");
  static const std::string root = memory_folder() + "/root";  // a machine that says nothing
  const std::uint8_t kind = input.byte();
  if (kind != 'R' && kind != 'F') return;
  file.write(kind == 'R' ? std::string(input.rest()) : record_of(input.rest()));
  accepts([&] {
    const FlightRecord record = read_flight_record(file.path());
    check_notes({describe(record, diagnose(record, 1.8e9, root))});
  });
}

}  // namespace ballast::fuzz
