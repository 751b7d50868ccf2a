// What comes on the control channel between ranks. The first byte says how many bytes come at once;
// all messages are decoded, whatever type they are.

#include <algorithm>
#include <cstring>

#include "dist/control_report.h"
#include "fuzz.h"

namespace ballast::fuzz {
namespace {

template <class Message>
void decode_as(std::span<const std::byte> fields, Message m = {}) {
  static ControlBuffer buffer;
  if (!accepts([&] { decode(fields, m); })) return;
  const auto again = encode(m, buffer);
  require(again.size() <= kMaxControlFrame);
  Message copy;
  decode(again.subspan(kControlHeader), copy);
}

void decode_all(std::span<const std::byte> fields) {
  decode_as<ControlHello>(fields);
  decode_as<ControlWelcome>(fields);
  decode_as<ControlDiffer>(fields);
  decode_as<ControlFacts>(fields);
  decode_as<ControlReport>(fields);
  std::vector<ControlPeer> peers(2);
  ControlReport report;
  const bool is_report = accepts([&] { decode(fields, report); });
  if (is_report) check_notes({report.text, report.line});
  accepts([&] { decode(fields, peers[0].beat); });
  ControlFailure failure;
  if (accepts([&] { decode(fields, failure); })) peers[1].failure = failure;
  if (const auto cause = find_cause(peers)) {
    check_notes({make_report(*cause, peers, {}).text});
  }
  ControlFacts facts;
  if (accepts([&] { decode(fields, facts); })) {
    check_notes({table_of_differences(std::vector<ControlFacts>{facts, {}})});
  }
}

}  // namespace

void one_input(Input input) {
  static std::vector<std::byte> memory(kMaxControlFrame);
  ControlFrameReader reader(memory);
  const std::size_t at_once = std::max<std::size_t>(input.byte(), 1);
  auto bytes = bytes_of(input.rest());
  accepts([&] {
    while (!bytes.empty()) {
      const auto to = reader.space();
      const std::size_t part = std::min({at_once, bytes.size(), to.size()});
      std::memcpy(to.data(), bytes.data(), part);
      reader.received(part);
      bytes = bytes.subspan(part);
      while (const auto frame = reader.next()) decode_all(frame->fields);
    }
  });
}

}  // namespace ballast::fuzz
