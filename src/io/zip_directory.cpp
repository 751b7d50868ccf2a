#include "io/zip_directory.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "io/limits.h"
#include "io/name_index.h"

namespace ballast {
namespace {

constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kEntryBytes = 46,
                        kLocalBytes = 30, kLongestComment = 65'535;
constexpr std::uint32_t kEndMark = 0x06054b50, kLocatorMark = 0x07064b50, kEnd64Mark = 0x06064b50,
                        kEntryMark = 0x02014b50, kLocalMark = 0x04034b50;

// Numbers of a piece of the archive, whose length was checked before.
class Fields {
 public:
  explicit Fields(const char* at) : at_(at) {}
  std::uint16_t u16(std::size_t i) const { return get<std::uint16_t>(i); }
  std::uint32_t u32(std::size_t i) const { return get<std::uint32_t>(i); }
  std::uint64_t u64(std::size_t i) const { return get<std::uint64_t>(i); }

 private:
  template <class T>
  T get(std::size_t i) const {
    T value;
    std::memcpy(&value, at_ + i, sizeof value);
    return value;
  }
  const char* at_;
};

class ZipReader {
 public:
  explicit ZipReader(const DiskFile& file) : file_(file) {}

  std::vector<ZipEntry> read() {
    find_directory();
    const std::string text = bytes_at(directory_, directory_bytes_);
    std::size_t at = 0;
    std::vector<Placed> placed;
    NameIndex names;
    const auto name_at = [&](std::uint32_t i) { return std::string_view(entries_[i].name); };
    for (std::uint64_t i = 0; i < count_; ++i) {
      placed.push_back(read_entry(text, at));
      const auto number = static_cast<std::uint32_t>(entries_.size() - 1);
      if (names.insert(entries_.back().name, number, name_at)) {
        refuse("pth.zip",
               fmt::format("the entry \"{}\" is there twice", printable(entries_.back().name)));
      }
    }
    if (at != text.size()) {
      refuse("pth.zip", fmt::format("the directory has {} bytes behind its {} entries",
                                    text.size() - at, count_));
    }
    check_places(placed);
    return std::move(entries_);
  }

 private:
  struct Placed {
    std::uint64_t begin, end;  // with the local header
    std::size_t entry;
  };

  [[noreturn]] void refuse(std::string_view rule, const std::string& what) const {
    fail(ErrorCode::input, "{}: {}: {}", file_.path(), rule, what);
  }

  std::string bytes_at(std::uint64_t offset, std::uint64_t bytes) const {
    std::string text(bytes, '\0');
    file_.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  // The end record is the last thing in the file, but for a comment whose length it knows.
  void find_directory() {
    const std::uint64_t size = file_.size();
    if (size < kEndBytes) refuse("pth.zip", fmt::format("{} bytes hold no archive", size));
    const std::uint64_t tail_bytes = std::min(size, kEndBytes + kLongestComment);
    const std::string tail = bytes_at(size - tail_bytes, tail_bytes);
    std::uint64_t at = tail_bytes - kEndBytes + 1;
    bool found = false;
    while (!found && at-- > 0) {
      const Fields f(tail.data() + at);
      found = f.u32(0) == kEndMark && at + kEndBytes + f.u16(20) == tail_bytes;
    }
    if (!found) refuse("pth.zip", "there is no end of the directory: the file may be cut off");
    const Fields end(tail.data() + at);
    const std::uint64_t end_offset = size - tail_bytes + at;
    if (end.u16(4) != 0 || end.u16(6) != 0 || end.u16(8) != end.u16(10)) {
      refuse("pth.zip", "the archive is one of several disks");
    }
    count_ = end.u16(10);
    directory_bytes_ = end.u32(12);
    directory_ = end.u32(16);
    std::uint64_t limit = end_offset;
    if (at >= kLocatorBytes && Fields(tail.data() + at - kLocatorBytes).u32(0) == kLocatorMark) {
      limit =
          read_end64(Fields(tail.data() + at - kLocatorBytes).u64(8), end_offset - kLocatorBytes);
    }
    if (count_ > limits::kZipEntries || directory_bytes_ > limits::kZipDirectory) {
      refuse("pth.limit",
             fmt::format("a directory of {} entries in {} bytes, at most {} in {}", count_,
                         directory_bytes_, limits::kZipEntries, limits::kZipDirectory));
    }
    if (directory_ > limit || directory_bytes_ > limit - directory_ ||
        count_ > directory_bytes_ / kEntryBytes) {
      refuse("pth.zip", fmt::format("a directory of {} entries in {} bytes at byte {} does not fit "
                                    "in front of byte {}",
                                    count_, directory_bytes_, directory_, limit));
    }
  }

  // Returns where the record begins: the directory ends before it.
  std::uint64_t read_end64(std::uint64_t offset, std::uint64_t limit) {
    if (offset > limit || limit - offset < kEnd64Bytes) {
      refuse("pth.zip", fmt::format("the ZIP64 end record is said to be at byte {}", offset));
    }
    const std::string text = bytes_at(offset, kEnd64Bytes);
    const Fields f(text.data());
    if (f.u32(0) != kEnd64Mark || f.u64(24) != f.u64(32)) {
      refuse("pth.zip", fmt::format("there is no ZIP64 end record at byte {}", offset));
    }
    count_ = f.u64(32);
    directory_bytes_ = f.u64(40);
    directory_ = f.u64(48);
    return offset;
  }

  Placed read_entry(std::string_view text, std::size_t& at) {
    if (text.size() - at < kEntryBytes) refuse("pth.zip", "the directory is cut off");
    const Fields f(text.data() + at);
    if (f.u32(0) != kEntryMark) {
      refuse("pth.zip", fmt::format("there is no entry at byte {}", directory_ + at));
    }
    const std::size_t name = f.u16(28), extra = f.u16(30), comment = f.u16(32);
    if (name + extra + comment > text.size() - at - kEntryBytes) {
      refuse("pth.zip", fmt::format("the entry at byte {} is cut off", directory_ + at));
    }
    ZipEntry entry;
    entry.name = text.substr(at + kEntryBytes, name);
    entry.crc32 = f.u32(16);
    check_name(entry.name);
    std::uint64_t packed = f.u32(20), size = f.u32(24), local = f.u32(42);
    read_extra(text.substr(at + kEntryBytes + name, extra), size, packed, local, entry.name);
    if ((f.u16(8) & 1) != 0) {
      refuse("pth.compressed", fmt::format("\"{}\" is encrypted", printable(entry.name)));
    }
    if (f.u16(10) != 0 || packed != size) {
      refuse("pth.compressed", fmt::format("\"{}\" is compressed (method {}): PyTorch stores as is",
                                           printable(entry.name), f.u16(10)));
    }
    at += kEntryBytes + name + extra + comment;
    entry.bytes = size;
    entry.offset = payload(local, entry);
    entries_.push_back(std::move(entry));
    const ZipEntry& e = entries_.back();
    return {local, e.offset + e.bytes, entries_.size() - 1};
  }

  // The ZIP64 extra field holds those numbers that did not fit, in this order.
  void read_extra(std::string_view extra, std::uint64_t& size, std::uint64_t& packed,
                  std::uint64_t& local, const std::string& name) const {
    while (extra.size() >= 4) {
      const Fields f(extra.data());
      const std::size_t bytes = f.u16(2);
      if (bytes > extra.size() - 4) break;
      std::size_t at = 4;
      for (std::uint64_t* number : {&size, &packed, &local}) {
        if (f.u16(0) != 1 || *number != 0xffffffffu) continue;
        if (at + 8 > 4 + bytes) {
          refuse("pth.zip", fmt::format("the long sizes of \"{}\" are cut off", printable(name)));
        }
        *number = f.u64(at);
        at += 8;
      }
      extra.remove_prefix(4 + bytes);
    }
  }

  void check_name(const std::string& name) const {
    const bool bad = name.empty() || name.size() > limits::kNameBytes || name[0] == '/' ||
                     name.find('\\') != std::string::npos || name.find('\0') != std::string::npos ||
                     ("/" + name + "/").find("/../") != std::string::npos;
    if (bad) refuse("pth.zip", fmt::format("an entry is named \"{}\"", printable(name)));
  }

  // The local header repeats the name and has an extra field of its own, which pads the data.
  std::uint64_t payload(std::uint64_t local, const ZipEntry& entry) const {
    const std::uint64_t header = kLocalBytes + entry.name.size();
    if (local > directory_ || header > directory_ - local) {
      refuse("pth.zip", fmt::format("\"{}\" is said to begin at byte {}, behind the directory",
                                    printable(entry.name), local));
    }
    const std::string text = bytes_at(local, header);
    const Fields f(text.data());
    if (f.u32(0) != kLocalMark || f.u16(26) != entry.name.size() ||
        std::string_view(text).substr(kLocalBytes) != entry.name) {
      refuse("pth.zip", fmt::format("\"{}\" does not begin at byte {} as the directory says",
                                    printable(entry.name), local));
    }
    const std::uint64_t begin = local + header + f.u16(28);
    if (begin > directory_ || entry.bytes > directory_ - begin) {
      refuse("pth.zip", fmt::format("\"{}\" of {} bytes at byte {} reaches into the directory",
                                    printable(entry.name), entry.bytes, begin));
    }
    return begin;
  }

  void check_places(std::vector<Placed>& placed) const {
    std::sort(placed.begin(), placed.end(),
              [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < placed.size(); ++i) {
      if (placed[i].begin >= placed[i - 1].end) continue;
      refuse("pth.zip", fmt::format("\"{}\" and \"{}\" share bytes",
                                    printable(entries_[placed[i - 1].entry].name),
                                    printable(entries_[placed[i].entry].name)));
    }
  }

  const DiskFile& file_;
  std::uint64_t count_ = 0, directory_ = 0, directory_bytes_ = 0;
  std::vector<ZipEntry> entries_;
};

}  // namespace

std::vector<ZipEntry> read_zip_directory(const DiskFile& file) { return ZipReader(file).read(); }

}  // namespace ballast
