#include "report/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <filesystem>

#include "core/crc32c.h"
#include "core/error.h"
#include "memory/proc_text.h"

namespace ballast {
namespace {

// Protobuf: tag = field << 3 | wire type.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <std::unsigned_integral T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void put_tag(std::string& out, int field, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_tag(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// A message inside a message. Its length comes first and is known last; lengths are short, so the
// bytes behind it move by one or two places.
template <class F>
void put_message(std::string& out, int field, F&& body) {
  put_tag(out, field, Wire::bytes);
  const std::size_t at = out.size();
  body();
  std::uint64_t length = out.size() - at;
  std::array<char, 10> prefix;
  std::size_t size = 0;
  for (; length >= 0x80; length >>= 7) prefix[size++] = static_cast<char>(length | 0x80);
  prefix[size++] = static_cast<char>(length);
  out.insert(at, prefix.data(), size);
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t c = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(c, 15) + 0xA282EAD8u;
}

// u64 length, its checksum, the event, its checksum.
template <class F>
void put_record(std::string& out, double wall_time, std::int64_t step, F&& body) {
  check(step >= 0, "event_file: step {} is negative", step);
  const std::size_t at = out.size();
  put_tag(out, 1, Wire::fixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(wall_time));
  if (step != 0) {
    put_tag(out, 2, Wire::varint);
    put_varint(out, static_cast<std::uint64_t>(step));
  }
  body();
  std::array<char, 12> prefix;
  const std::uint64_t length = out.size() - at;
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(length >> (8 * i));
  const std::uint32_t length_crc = masked_crc({prefix.data(), 8});
  for (std::size_t i = 0; i < 4; ++i) prefix[8 + i] = static_cast<char>(length_crc >> (8 * i));
  const std::uint32_t crc = masked_crc(std::string_view(out).substr(at));
  out.insert(at, prefix.data(), prefix.size());
  put_little_endian(out, crc);
}

double wall_time_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// Readers go through the files in the order of their names: later than the clock where a file from
// this very second, or from a clock that was ahead, is there.
std::uint64_t seconds_for(const std::string& folder) {
  constexpr std::string_view kMark = "tfevents.";
  constexpr std::uint64_t kMax = 9'999'999'999;  // ten digits
  auto seconds = static_cast<std::uint64_t>(wall_time_now());
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    const std::size_t mark = name.find(kMark);
    if (mark == std::string::npos) continue;
    std::string_view rest = std::string_view(name).substr(mark + kMark.size());
    const auto taken = parse_number(take(rest, '.'));
    if (taken && *taken >= seconds && *taken < kMax) seconds = *taken + 1;
  }
  return seconds;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::string host = name.data();
  std::ranges::replace(host, '/', '-');
  return host;
}

AppendFile open_new(const std::string& folder) {
  make_folders(folder);
  static int counter = 0;  // of this process, as other writers number theirs
  return {fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, seconds_for(folder),
                      host_name(), ::getpid(), counter++),
          AppendFile::Open::fresh};
}

}  // namespace

namespace event_record {

void file_version(std::string& out, double wall_time) {
  put_record(out, wall_time, 0, [&] {
    put_bytes(out, 3, "brain.Event:2");
    put_message(out, 10, [&] { put_bytes(out, 1, "ballast"); });  // source_metadata.writer
  });
}

void scalars(std::string& out, double wall_time, std::int64_t step,
             std::span<const Scalar> values) {
  put_record(out, wall_time, step, [&] {
    put_message(out, 5, [&] {
      for (const Scalar& s : values) {
        put_message(out, 1, [&] {
          put_bytes(out, 1, s.tag);
          put_tag(out, 2, Wire::fixed32);
          put_little_endian(out, std::bit_cast<std::uint32_t>(s.value));
        });
      }
    });
  });
}

void text(std::string& out, double wall_time, std::int64_t step, std::string_view name,
          std::string_view markdown) {
  put_record(out, wall_time, step, [&] {
    put_message(out, 5, [&] {
      put_message(out, 1, [&] {
        put_message(out, 1, [&] { (out += name) += "/text_summary"; });
        put_message(out, 8, [&] {  // tensor: dtype string, shape [1]
          put_tag(out, 1, Wire::varint);
          put_varint(out, 7);
          put_message(out, 2, [&] {
            put_message(out, 2, [&] {
              put_tag(out, 1, Wire::varint);
              put_varint(out, 1);
            });
          });
          put_bytes(out, 8, markdown);
        });
        put_message(out, 9, [&] { put_message(out, 1, [&] { put_bytes(out, 1, "text"); }); });
      });
    });
  });
}

void image(std::string& out, double wall_time, std::int64_t step, std::string_view tag,
           const EncodedImage& image) {
  put_record(out, wall_time, step, [&] {
    put_message(out, 5, [&] {
      put_message(out, 1, [&] {
        put_bytes(out, 1, tag);
        put_message(out, 4, [&] {
          constexpr std::uint64_t kRgb = 3;
          int field = 0;
          for (const std::uint64_t value : {static_cast<std::uint64_t>(image.height),
                                            static_cast<std::uint64_t>(image.width), kRgb}) {
            put_tag(out, ++field, Wire::varint);
            put_varint(out, value);
          }
          put_bytes(out, 4, image.bytes);
        });
      });
    });
  });
}

void restart(std::string& out, double wall_time, std::int64_t step) {
  put_record(out, wall_time, step, [&] {
    put_message(out, 7, [&] {  // session_log: status START
      put_tag(out, 1, Wire::varint);
      put_varint(out, 1);
    });
  });
}

}  // namespace event_record

EventFile::EventFile(const std::string& folder, std::optional<std::int64_t> resumed_at)
    : file_(open_new(folder)) {
  event_record::file_version(record_, wall_time_now());
  file_.append(record_);
  if (!resumed_at) return;
  record_.clear();
  event_record::restart(record_, wall_time_now(), *resumed_at);
  file_.append(record_);
}

void EventFile::scalar(std::int64_t step, std::string_view tag, double value) {
  const Scalar one = {tag, static_cast<float>(value)};
  scalars(step, {&one, 1});
}

void EventFile::scalars(std::int64_t step, std::span<const Scalar> values) {
  record_.clear();
  event_record::scalars(record_, wall_time_now(), step, values);
  file_.append(record_);
}

void EventFile::text(std::int64_t step, std::string_view name, std::string_view markdown) {
  record_.clear();
  event_record::text(record_, wall_time_now(), step, name, markdown);
  file_.append(record_);
}

void EventFile::image(std::int64_t step, std::string_view tag, const EncodedImage& image) {
  record_.clear();
  event_record::image(record_, wall_time_now(), step, tag, image);
  file_.append(record_);
  record_ = {};  // the largest by far
}

}  // namespace ballast
