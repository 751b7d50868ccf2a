#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// PyTorch files made by hand: a zip archive that may lie about itself, and pickles.
namespace ballast::test {

template <class T>
std::string little(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
  }
  return out;
}
inline std::string u16(unsigned n) { return little(static_cast<std::uint16_t>(n)); }
inline std::string u32(std::uint64_t n) { return little(static_cast<std::uint32_t>(n)); }
inline std::string u64(std::uint64_t n) { return little(n); }

struct ZipFile {
  std::string name, content;
  // What the directory says instead of the truth.
  unsigned method = 0, flags = 0x0808;
  std::int64_t size_lie = -1, offset_lie = -1;
  std::string local_name = {};
  std::uint32_t crc = 0;
};

struct ZipLies {
  std::int64_t count = -1, directory = -1, directory_bytes = -1, end64 = -1;
  bool zip64 = true;
  unsigned disk = 0;
  std::string comment = {};
};

// As PyTorch writes it: nothing compressed, sizes in the directory alone, data at multiples of 64,
// a ZIP64 end record.
inline std::string zip_archive(const std::vector<ZipFile>& files, const ZipLies& lies = {}) {
  std::string out, directory;
  for (const ZipFile& f : files) {
    const std::size_t local = out.size();
    const std::string name = f.local_name.empty() ? f.name : f.local_name;
    std::size_t extra = 64 - (local + 30 + name.size() + 4) % 64 + 4;
    out += "PK\x03\x04" + u16(0) + u16(f.flags) + u16(f.method) + u32(0) + u32(0) + u32(0) +
           u32(0) + u16(static_cast<unsigned>(name.size())) + u16(static_cast<unsigned>(extra)) +
           name + "FB" + u16(static_cast<unsigned>(extra - 4)) + std::string(extra - 4, 'Z') +
           f.content;
    const std::uint64_t size =
        f.size_lie >= 0 ? static_cast<std::uint64_t>(f.size_lie) : f.content.size();
    const bool wide = size > 0xfffffffeu;
    const std::string long_size = wide ? u16(1) + u16(16) + u64(size) + u64(size) : std::string();
    directory += "PK\x01\x02" + u16(0) + u16(0) + u16(f.flags) + u16(f.method) + u32(0) +
                 u32(f.crc) + u32(wide ? 0xffffffffu : size) + u32(wide ? 0xffffffffu : size) +
                 u16(static_cast<unsigned>(f.name.size())) +
                 u16(static_cast<unsigned>(long_size.size())) + u16(0) + u16(0) + u16(0) + u32(0) +
                 u32(f.offset_lie >= 0 ? static_cast<std::uint64_t>(f.offset_lie) : local) +
                 f.name + long_size;
  }
  const auto lie = [](std::int64_t said, std::uint64_t truth) {
    return said >= 0 ? static_cast<std::uint64_t>(said) : truth;
  };
  const std::uint64_t count = lie(lies.count, files.size());
  const std::uint64_t at = lie(lies.directory, out.size());
  const std::uint64_t bytes = lie(lies.directory_bytes, directory.size());
  out += directory;
  if (lies.zip64) {
    const std::uint64_t end64 = lie(lies.end64, out.size());
    out += "PK\x06\x06" + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(count) + u64(count) +
           u64(bytes) + u64(at);
    out += "PK\x06\x07" + u32(0) + u64(end64) + u32(1);
  }
  return out + "PK\x05\x06" + u16(lies.disk) + u16(lies.disk) + u16(static_cast<unsigned>(count)) +
         u16(static_cast<unsigned>(count)) + u32(bytes) + u32(at) +
         u16(static_cast<unsigned>(lies.comment.size())) + lies.comment;
}

// Opcodes of a pickle.
namespace pickle {

inline std::string text(std::string_view s) { return "X" + u32(s.size()) + std::string(s); }
inline std::string number(std::int64_t n) {
  if (n >= 0 && n < 256) return "K" + std::string(1, static_cast<char>(n));
  return "\x8a\x08" + u64(static_cast<std::uint64_t>(n));
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& i : items) out += i;
  return out + "t";
}
inline std::string numbers(const std::vector<std::int64_t>& items) {
  std::string out = "(";
  for (const std::int64_t i : items) out += number(i);
  return out + "t";
}
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string storage(std::string_view type, std::string_view key, std::int64_t elements) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), number(elements)}) +
         "Q";
}
inline std::string tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage, number(offset), numbers(shape), numbers(strides), "\x89",
                global("collections", "OrderedDict") + ")R"}) +
         "R";
}
// {name: value, ...}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}
inline std::string whole(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace pickle

// root/data.pkl, root/data/0, root/data/1, ...
inline std::string torch_archive(const std::string& pickled,
                                 const std::vector<std::string>& storages) {
  std::vector<ZipFile> files = {{.name = "archive/data.pkl", .content = pickled},
                                {.name = "archive/byteorder", .content = "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    files.push_back({.name = "archive/data/" + std::to_string(i), .content = storages[i]});
  }
  files.push_back({.name = "archive/version", .content = "3\n"});
  return zip_archive(files);
}

}  // namespace ballast::test
