#include "dist/control_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/to_size.h"

namespace ballast {
namespace {

// Of one text; what is longer is cut, so that a frame always has room.
constexpr std::size_t kMaxText = 12 << 10;
constexpr std::size_t kMaxShortText = 512;

[[noreturn]] void fail_frame(std::string_view why) {
  fail(ErrorCode::input, fmt::format("another process of the job sent what is no frame of the "
                                     "control channel: {}",
                                     why));
}

// Stops before a character that would be cut in two.
std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

class FieldWriter {
 public:
  explicit FieldWriter(ControlBuffer& to) : to_(to) {}

  template <class T>
  void number(T value) {
    static_assert(std::endian::native == std::endian::little);
    check(at_ + sizeof(T) <= to_.size(), "a control frame of more than {} bytes", to_.size());
    std::memcpy(to_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  // reserve: bytes that later fields need.
  void text(std::string_view text, std::size_t most = kMaxText, std::size_t reserve = 0) {
    const std::size_t used = at_ + sizeof(std::uint16_t) + reserve;
    const std::size_t room = used < to_.size() ? to_.size() - used : 0;
    text = cut(text, std::min(most, room));
    number(static_cast<std::uint16_t>(text.size()));
    std::memcpy(to_.data() + at_, text.data(), text.size());
    at_ += text.size();
  }
  std::size_t left() const { return to_.size() - at_; }

  std::span<const std::byte> finish(ControlType type) {
    const auto length = static_cast<std::uint32_t>(at_ - kControlHeader);
    const auto number = static_cast<std::uint16_t>(type);
    std::memcpy(to_.data(), &length, sizeof(length));
    std::memcpy(to_.data() + 4, &number, sizeof(number));
    std::memcpy(to_.data() + 6, &kControlVersion, sizeof(kControlVersion));
    return std::span(to_).first(at_);
  }

 private:
  ControlBuffer& to_;
  std::size_t at_ = kControlHeader;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> fields) : rest_(fields) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  std::string_view raw(std::size_t most = kMaxText) {
    const std::size_t bytes = number<std::uint16_t>();
    if (bytes > most) fail_frame(fmt::format("a text of {} bytes, at most {}", bytes, most));
    const auto text = take(bytes);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  // Line by line safe to print.
  std::string text(std::size_t most = kMaxText) {
    std::string_view rest = raw(most);
    std::string safe;
    for (;;) {
      const std::size_t end = rest.find('\n');
      safe += printable(rest.substr(0, end), 4 * most);
      if (end == std::string_view::npos) return safe;
      safe += '\n';
      rest.remove_prefix(end + 1);
    }
  }
  template <std::size_t N>
  void text(std::array<char, N>& to) {
    put_text(to, raw(N));
  }

 private:
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > rest_.size()) {
      fail_frame(fmt::format("{} bytes are missing at its end", bytes - rest_.size()));
    }
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> rest_;
};

ErrorCode code_of(std::uint32_t number) {
  const auto last = static_cast<std::uint32_t>(ErrorCode::lost);
  if (number < 1 || number > last) fail_frame(fmt::format("exit code {}", number));
  return static_cast<ErrorCode>(number);
}

template <class Self, class Visit>
void each_number(Self& m, Visit&& visit) {
  visit(m.step);
  visit(m.total_steps);
  visit(m.checkpoint);
  visit(m.progress);
  visit(m.longest);
}

}  // namespace

ControlFrameReader::ControlFrameReader(std::span<std::byte> buffer) : buffer_(buffer) {
  check(buffer.size() >= kMaxControlFrame, "a buffer of {} bytes for control frames",
        buffer.size());
}

std::span<std::byte> ControlFrameReader::space() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  check(end_ < buffer_.size(), "a whole control frame was not taken");
  return buffer_.subspan(end_);
}

void ControlFrameReader::received(std::size_t bytes) {
  check(bytes <= buffer_.size() - end_, "{} bytes received, room for {}", bytes,
        buffer_.size() - end_);
  end_ += bytes;
}

std::optional<ControlFrame> ControlFrameReader::next() {
  for (;;) {
    const auto rest = buffer_.subspan(begin_, end_ - begin_);
    if (rest.size() < kControlHeader) return std::nullopt;
    std::uint32_t length = 0;
    std::uint16_t type = 0, version = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    std::memcpy(&type, rest.data() + 4, sizeof(type));
    std::memcpy(&version, rest.data() + 6, sizeof(version));
    if (length > kMaxControlFrame - kControlHeader) {
      fail_frame(fmt::format("a length of {} bytes, at most {}", length,
                             kMaxControlFrame - kControlHeader));
    }
    if (version >> 8 != kControlVersion >> 8) {
      fail_frame(
          fmt::format("version {}.{}, this program speaks {}.{}: all ranks must be of one "
                      "version of Ballast",
                      version >> 8, version & 0xff, kControlVersion >> 8, kControlVersion & 0xff));
    }
    if (rest.size() < kControlHeader + length) return std::nullopt;
    begin_ += kControlHeader + length;
    if (type < 1 || type > static_cast<std::uint16_t>(ControlType::bye)) continue;
    return ControlFrame{static_cast<ControlType>(type), rest.subspan(kControlHeader, length)};
  }
}

std::span<const std::byte> encode(const ControlHello& m, ControlBuffer& to) {
  FieldWriter w(to);
  w.text(m.token, kMaxShortText);
  w.number(m.rank);
  w.number(m.ranks);
  w.number(m.process);
  w.number(m.output_device);
  w.number(m.output_file);
  return w.finish(ControlType::hello);
}

void decode(std::span<const std::byte> fields, ControlHello& m) {
  FieldReader r(fields);
  m.token = r.text(kMaxShortText);
  m.rank = r.number<std::uint32_t>();
  m.ranks = r.number<std::uint32_t>();
  m.process = r.number<std::int64_t>();
  m.output_device = r.number<std::uint64_t>();
  m.output_file = r.number<std::uint64_t>();
}

std::span<const std::byte> encode(const ControlWelcome& m, ControlBuffer& to) {
  FieldWriter w(to);
  w.text(m.refused, kMaxShortText);
  return w.finish(ControlType::welcome);
}

void decode(std::span<const std::byte> fields, ControlWelcome& m) {
  m.refused = FieldReader(fields).text(kMaxShortText);
}

std::span<const std::byte> encode(const ControlFacts& m, ControlBuffer& to) {
  FieldWriter w(to);
  const std::size_t count = std::min<std::size_t>(m.facts.size(), 15);
  w.number(static_cast<std::uint16_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    w.text(m.facts[i].first, 64);
    w.text(m.facts[i].second, kMaxShortText);
  }
  return w.finish(ControlType::facts);
}

void decode(std::span<const std::byte> fields, ControlFacts& m) {
  FieldReader r(fields);
  m.facts.clear();
  const std::size_t count = r.number<std::uint16_t>();
  for (std::size_t i = 0; i < count; ++i) {
    std::string name = r.text(64);
    m.facts.emplace_back(std::move(name), r.text(kMaxShortText));
  }
}

std::span<const std::byte> encode(const ControlDiffer& m, ControlBuffer& to) {
  FieldWriter w(to);
  w.text(m.table);
  return w.finish(ControlType::differ);
}

void decode(std::span<const std::byte> fields, ControlDiffer& m) {
  m.table = FieldReader(fields).text();
}

std::span<const std::byte> encode(const ControlHeartbeat& m, ControlBuffer& to) noexcept {
  FieldWriter w(to);
  w.text(text_of(m.phase));
  each_number(m, [&](auto number) { w.number(number); });
  w.text(text_of(m.program));
  w.text(text_of(m.instruction));
  w.text(text_of(m.exchange));
  for (const ControlMemory& line : m.memory) {
    w.text(text_of(line.name));
    w.number(line.planned);
    w.number(line.allowed);
    w.number(line.measured);
  }
  w.text(text_of(m.folder));
  return w.finish(ControlType::heartbeat);
}

void decode(std::span<const std::byte> fields, ControlHeartbeat& m) {
  FieldReader r(fields);
  r.text(m.phase);
  each_number(m, [&](auto& number) { number = r.number<std::decay_t<decltype(number)>>(); });
  r.text(m.program);
  r.text(m.instruction);
  r.text(m.exchange);
  for (ControlMemory& line : m.memory) {
    r.text(line.name);
    line.planned = r.number<std::uint64_t>();
    line.allowed = r.number<std::uint64_t>();
    line.measured = r.number<std::uint64_t>();
  }
  r.text(m.folder);
}

std::span<const std::byte> encode(const ControlFailure& m, ControlBuffer& to) {
  FieldWriter w(to);
  w.number(static_cast<std::uint32_t>(m.code));
  w.number(static_cast<std::uint8_t>(m.shown));
  constexpr std::size_t kForAdvice = 4 << 10;
  w.text(m.text, kMaxText, kForAdvice);
  // As many lines as there is room for, in their order.
  std::size_t count = 0, room = w.left() - sizeof(std::uint16_t);
  for (const Advice& a : m.advice) {
    const std::size_t bytes =
        4 + std::min(a.change.size(), kMaxText) + std::min(a.effect.size(), kMaxText);
    if (count == ControlFailure::kMaxAdvice || bytes > room) break;
    room -= bytes;
    ++count;
  }
  w.number(static_cast<std::uint16_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    w.text(m.advice[i].change);
    w.text(m.advice[i].effect);
  }
  return w.finish(ControlType::failure);
}

void decode(std::span<const std::byte> fields, ControlFailure& m) {
  FieldReader r(fields);
  m.code = code_of(r.number<std::uint32_t>());
  m.shown = r.flag();
  m.text = r.text();
  const std::size_t count = r.number<std::uint16_t>();
  if (count > ControlFailure::kMaxAdvice) fail_frame(fmt::format("{} lines of advice", count));
  m.advice.clear();
  for (std::size_t i = 0; i < count; ++i) {
    std::string change = r.text();
    m.advice.push_back({std::move(change), r.text()});
  }
}

std::span<const std::byte> encode(const ControlReport& m, ControlBuffer& to) {
  FieldWriter w(to);
  w.number(static_cast<std::uint32_t>(m.code));
  w.number(m.rank);
  w.number(static_cast<std::uint8_t>(m.whole));
  w.text(m.line, kMaxShortText);
  w.text(m.text);
  return w.finish(ControlType::report);
}

void decode(std::span<const std::byte> fields, ControlReport& m) {
  FieldReader r(fields);
  m.code = code_of(r.number<std::uint32_t>());
  m.rank = r.number<std::uint32_t>();
  m.whole = r.flag();
  m.line = r.text(kMaxShortText);
  m.text = r.text();
}

std::span<const std::byte> encode_bye(ControlBuffer& to) {
  return FieldWriter(to).finish(ControlType::bye);
}

}  // namespace ballast
