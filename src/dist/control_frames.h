#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

namespace ballast {

// What ranks tell each other on the control channel: frames of
//
//   u32 length of the fields, u16 type, u16 version, fields
//
// in little-endian order; texts are a u16 length and UTF-8. Types that a reader does not know are
// skipped, a version whose first number (its high byte) differs is refused. What comes from a
// socket is checked like a file from a stranger: everything here fails with ErrorCode::input.

inline constexpr std::size_t kControlHeader = 8;
inline constexpr std::size_t kMaxControlFrame = 16 << 10;  // with its header
inline constexpr std::uint16_t kControlVersion = 0x0100;

enum class ControlType : std::uint16_t {
  hello = 1,
  welcome,
  facts,
  differ,
  heartbeat,
  failure,
  report,
  bye,
};

struct ControlFrame {
  ControlType type = ControlType::bye;
  std::span<const std::byte> fields;
};

// Cuts what a socket gives into frames. The buffer is the caller's: nothing is allocated.
class ControlFrameReader {
 public:
  // Takes at least kMaxControlFrame bytes.
  explicit ControlFrameReader(std::span<std::byte> buffer);

  // Where the next bytes go, at least one; they make earlier frames invalid.
  std::span<std::byte> space();
  void received(std::size_t bytes);
  // nullopt: the rest of it has not come yet.
  std::optional<ControlFrame> next();

 private:
  std::span<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what has come and was not given out
};

// First on a connection.
struct ControlHello {
  std::string token = {};  // of the job
  std::uint32_t rank = 0, ranks = 0;
  std::int64_t process = 0;
  std::uint64_t output_device = 0, output_file = 0;  // of standard error: who shares it
};

// The answer; "" is a welcome, else why not.
struct ControlWelcome {
  std::string refused;
};

// Compared between ranks before a run begins.
struct ControlFacts {
  std::vector<std::pair<std::string, std::string>> facts;  // name, value
};

// Who has what; "": all the same.
struct ControlDiffer {
  std::string table;
};

// One line of the memory table.
struct ControlMemory {
  std::array<char, 24> name{};  // "RAM"; empty: no line
  std::uint64_t planned = 0, allowed = 0, measured = 0;
};

// Where a rank is, without anything on the heap: it is filled and read several times a second.
struct ControlHeartbeat {
  std::array<char, 16> phase{};  // "step"; empty: it has no run yet
  std::int64_t step = 0, total_steps = 0;
  std::int64_t checkpoint = -1;                   // step of the newest whole one
  std::uint64_t progress = 0;                     // instructions that have ended
  double longest = 0;                             // predicted seconds of the longest instruction
  std::array<char, 96> program{}, instruction{};  // of the lanes that compute and move
  std::array<char, 96> exchange{};                // of the network lane
  std::array<ControlMemory, 4> memory{};
  std::array<char, 512> folder{};  // of the run, where this rank knows it
};

// Cut to what fits.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  const std::size_t bytes = text.size() < N ? text.size() : N - 1;
  to.fill(0);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = text[i];
}
template <std::size_t N>
std::string_view text_of(const std::array<char, N>& from) {
  const std::string_view whole(from.data(), N);
  return whole.substr(0, whole.find('\0'));
}

// A rank cannot go on.
struct ControlFailure {
  ErrorCode code = ErrorCode::internal;
  std::string text;                 // what happened, and while doing what
  std::vector<Advice> advice = {};  // at most kMaxAdvice
  bool shown = false;               // the rank has printed the text

  static constexpr std::size_t kMaxAdvice = 16;
  bool operator==(const ControlFailure& o) const { return code == o.code && text == o.text; }
};

// Why the job ends, the same for all ranks.
struct ControlReport {
  ErrorCode code = ErrorCode::lost;
  std::uint32_t rank = 0;  // where it began
  bool whole = true;       // this rank prints all of it; else the line
  std::string text = {}, line = {};
};

// Into `to`, whose beginning that is filled they return.
using ControlBuffer = std::array<std::byte, kMaxControlFrame>;
std::span<const std::byte> encode(const ControlHello& m, ControlBuffer& to);
std::span<const std::byte> encode(const ControlWelcome& m, ControlBuffer& to);
std::span<const std::byte> encode(const ControlFacts& m, ControlBuffer& to);
std::span<const std::byte> encode(const ControlDiffer& m, ControlBuffer& to);
std::span<const std::byte> encode(const ControlHeartbeat& m, ControlBuffer& to) noexcept;
std::span<const std::byte> encode(const ControlFailure& m, ControlBuffer& to);
std::span<const std::byte> encode(const ControlReport& m, ControlBuffer& to);
std::span<const std::byte> encode_bye(ControlBuffer& to);

// Texts are safe to print.
void decode(std::span<const std::byte> fields, ControlHello& m);
void decode(std::span<const std::byte> fields, ControlWelcome& m);
void decode(std::span<const std::byte> fields, ControlFacts& m);
void decode(std::span<const std::byte> fields, ControlDiffer& m);
void decode(std::span<const std::byte> fields, ControlHeartbeat& m);
void decode(std::span<const std::byte> fields, ControlFailure& m);
void decode(std::span<const std::byte> fields, ControlReport& m);

}  // namespace ballast
