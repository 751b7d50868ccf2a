#include "io/tar_archive.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "core/to_size.h"
#include "io/utf8.h"

namespace ballast {
namespace {

constexpr std::uint64_t kTarBlock = 512;
constexpr std::size_t kTarMembers = 10'000'000;
constexpr std::uint64_t kTarHeaderBytes = 1 << 20;  // a long name, the records of pax
constexpr std::size_t kTarNameBytes = 4096;

using TarBlock = std::array<char, kTarBlock>;

// Offsets and lengths of header fields.
struct TarField {
  std::size_t at, length;
};
constexpr TarField kTarName{0, 100}, kTarSize{124, 12}, kTarChecksum{148, 8}, kTarMagic{257, 6},
    kTarPrefix{345, 155};
constexpr std::size_t kTarType = 156;

// Up to the first zero byte.
std::string_view text_of(const TarBlock& block, TarField field) {
  const std::string_view all(block.data() + field.at, field.length);
  return all.substr(0, std::min(all.find('\0'), all.size()));
}

// Octal digits with spaces or zero bytes around them; nothing at all is 0.
std::optional<std::uint64_t> octal(std::string_view text) {
  constexpr std::string_view kSpace(" \0", 2);
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return 0;
  text = text.substr(first, text.find_first_of(kSpace, first) - first);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The records of a pax header, and the long names of GNU, for the member that follows.
struct TarNames {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};

class TarReader {
 public:
  explicit TarReader(const DiskFile& file) : file_(file) {}

  TarListing list() {
    TarBlock block;
    while (read_header(block)) {
      const std::uint64_t start = at_;
      at_ += kTarBlock;
      visit(block, start);
    }
    keep_last_of_each_name();
    return std::move(listing_);
  }

 private:
  [[noreturn]] void refuse(std::uint64_t at, std::string_view what) const {
    fail(
        ErrorCode::input,
        fmt::format("{}: the archive is damaged at byte {}: {}", printable(file_.path()), at, what),
        {{"make or copy the archive again", "what follows that place cannot be found"}});
  }

  // False at the end: a block of zeros, or the end of the file.
  bool read_header(TarBlock& block) {
    const std::uint64_t left = file_.size() - at_;
    if (left == 0) return false;
    block.fill('\0');
    file_.read(at_,
               std::as_writable_bytes(std::span(block)).first(to_size(std::min(left, kTarBlock))));
    if (std::ranges::all_of(block, [](char c) { return c == '\0'; })) return false;
    if (left < kTarBlock) refuse(at_, "it ends in the middle of a header");
    check_sum(block);
    return true;
  }

  void check_sum(const TarBlock& block) const {
    std::uint64_t sum = 0;
    std::int64_t signed_sum = 0;  // some old programs added signed bytes
    for (std::size_t i = 0; i < block.size(); ++i) {
      const bool field = i >= kTarChecksum.at && i < kTarChecksum.at + kTarChecksum.length;
      const char c = field ? ' ' : block[i];
      sum += static_cast<unsigned char>(c);
      signed_sum += static_cast<signed char>(c);
    }
    const auto stored = octal({block.data() + kTarChecksum.at, kTarChecksum.length});
    if (stored && (*stored == sum || static_cast<std::int64_t>(*stored) == signed_sum)) return;
    refuse(at_, "the checksum of a header is wrong");
  }

  std::uint64_t size_of_data(const TarBlock& block, std::uint64_t start) const {
    const auto* field = reinterpret_cast<const unsigned char*>(block.data() + kTarSize.at);
    if ((field[0] & 0x80) == 0) {
      const auto size = octal({block.data() + kTarSize.at, kTarSize.length});
      if (!size) refuse(start, "the size of a member is no number");
      return *size;
    }
    // Base 256, the first byte a mark; 0xff begins a negative number.
    if (field[0] != 0x80) refuse(start, "the size of a member is negative or too large");
    std::uint64_t size = 0;
    for (std::size_t i = 1; i < kTarSize.length; ++i) {
      if (size >> 56 != 0) refuse(start, "the size of a member is too large");
      size = size << 8 | field[i];
    }
    return size;
  }

  // Moves behind the data of the member whose header is at `start`.
  void pass_data(std::uint64_t bytes, std::uint64_t start) {
    if (bytes > file_.size() - at_) {
      refuse(start, fmt::format("a member of {} bytes, and {} follow", bytes, file_.size() - at_));
    }
    at_ += bytes;
    // The padding of the last member may be missing.
    at_ += std::min((kTarBlock - bytes % kTarBlock) % kTarBlock, file_.size() - at_);
  }

  // The data of a header that describes the next member.
  std::string read_text(std::uint64_t bytes, std::uint64_t start) {
    if (bytes > kTarHeaderBytes) {
      refuse(start, fmt::format("a name or pax header of {} bytes; at most {} are read", bytes,
                                kTarHeaderBytes));
    }
    const std::uint64_t from = at_;
    pass_data(bytes, start);
    std::string text(to_size(bytes), '\0');
    file_.read(from, std::as_writable_bytes(std::span(text)));
    return text;
  }

  void visit(const TarBlock& block, std::uint64_t start) {
    const char type = block[kTarType];
    const std::uint64_t bytes = size_of_data(block, start);
    switch (type) {
      case 'L': {  // GNU: the name of the next member
        const std::string name = read_text(bytes, start);
        next_.path = name.substr(0, std::min(name.find('\0'), name.size()));
        return;
      }
      case 'x':
      case 'X':
        return read_pax(read_text(bytes, start), start);
      case 'g':  // for all members: says nothing that is read here
      case 'K':  // GNU: where the next link leads
        return pass_data(bytes, start);
      default:
        return add_member(block, type, bytes, start);
    }
  }

  // "LENGTH key=value\n", one after the other.
  void read_pax(std::string_view text, std::uint64_t start) {
    while (!text.empty() && text.front() != '\0') {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto digits = to_size(end - text.data());
      const bool sound = error == std::errc() && digits < text.size() && *end == ' ' &&
                         length > digits + 2 && length <= text.size() && text[length - 1] == '\n';
      if (!sound) refuse(start, "a record of a pax header has a wrong length");
      const std::string_view record = text.substr(digits + 1, length - digits - 2);
      const std::size_t equals = record.find('=');
      if (equals == std::string_view::npos) refuse(start, "a record of a pax header has no value");
      take_record(record.substr(0, equals), record.substr(equals + 1), start);
      text.remove_prefix(length);
    }
  }

  void take_record(std::string_view key, std::string_view value, std::uint64_t start) {
    if (key == "path") next_.path = std::string(value);
    if (key.starts_with("GNU.sparse.")) next_.sparse = true;
    if (key != "size") return;
    std::uint64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (error != std::errc() || end != value.data() + value.size()) {
      refuse(start, fmt::format("the size \"{}\" of a pax header is no number or negative",
                                printable(value, 40)));
    }
    next_.size = size;
  }

  static std::string plain_name(const TarBlock& block) {
    const std::string_view name = text_of(block, kTarName);
    // GNU has times where ustar has the front of a long name.
    const std::string_view magic(block.data() + kTarMagic.at, kTarMagic.length);
    const std::string_view prefix =
        magic == std::string_view("ustar\0", 6) ? text_of(block, kTarPrefix) : "";
    return prefix.empty() ? std::string(name) : fmt::format("{}/{}", prefix, name);
  }

  void add_member(const TarBlock& block, char type, std::uint64_t bytes, std::uint64_t start) {
    const TarNames given = std::exchange(next_, {});
    std::string name = given.path.value_or(plain_name(block));
    // Links and devices have no data, whatever their size says.
    const bool has_data = type < '1' || type > '6';
    const std::uint64_t size = given.size.value_or(bytes);
    const std::uint64_t from = at_;
    if (has_data) pass_data(size, start);
    const bool folder = type == '5' || (type != 'S' && name.ends_with('/'));
    if (folder) return;
    if (listing_.members.size() + listing_.left_out.size() == kTarMembers) {
      refuse(start, fmt::format("more than {} members", kTarMembers));
    }
    std::string reason = type_fault(type, given.sparse);
    if (reason.empty()) reason = name_fault(name);
    if (!reason.empty()) {
      listing_.left_out.emplace_back(std::move(name), std::move(reason));
      return;
    }
    if (name.starts_with("./")) name.erase(0, 2);
    listing_.members.push_back({std::move(name), from, size});
  }

  static std::string type_fault(char type, bool sparse) {
    if (sparse || type == 'S') return "a sparse file";
    if (type == '1' || type == '2') return "a link";
    if (type == '\0' || type == '0' || type == '7') return "";
    return "no regular file";
  }

  static std::string name_fault(std::string_view name) {
    if (name.starts_with("./")) name.remove_prefix(2);
    if (name.empty()) return "it has no name";
    if (name.size() > kTarNameBytes) return "its name is too long";
    if (name.starts_with('/')) return "its name is absolute";
    if (first_invalid_utf8(name)) return "its name is not UTF-8";
    if (name.find('\0') != std::string_view::npos) return "its name has a zero byte";
    for (std::size_t at = 0; at <= name.size();) {
      const std::size_t end = std::min(name.find('/', at), name.size());
      if (name.substr(at, end - at) == "..") return "its name leads upwards (..)";
      at = end + 1;
    }
    return "";
  }

  void keep_last_of_each_name() {
    std::unordered_map<std::string_view, std::size_t> last;
    std::vector<TarMember>& all = listing_.members;
    for (std::size_t i = 0; i < all.size(); ++i) last[all[i].name] = i;
    if (last.size() == all.size()) return;
    std::vector<TarMember> kept;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (last[all[i].name] == i) {
        kept.push_back(all[i]);
      } else {
        listing_.left_out.emplace_back(all[i].name, "a later member has the same name");
      }
    }
    all = std::move(kept);
  }

  const DiskFile& file_;
  std::uint64_t at_ = 0;
  TarNames next_;
  TarListing listing_;
};

}  // namespace

TarListing list_tar(const DiskFile& file) { return TarReader(file).list(); }

}  // namespace ballast
