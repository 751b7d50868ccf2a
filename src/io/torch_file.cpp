#include "io/torch_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <tuple>

#include "core/crc32.h"
#include "core/error.h"
#include "io/limits.h"
#include "io/name_index.h"
#include "io/pickle.h"
#include "io/zip_directory.h"

namespace ballast {
namespace {

constexpr std::string_view kZipMark = "PK\x03\x04";
constexpr std::string_view kLegacyMark(
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15);
constexpr std::string_view kPreviewMark = "PYTORCH1";
constexpr std::size_t kTarMark = 257;
constexpr std::uint64_t kGatherBytes = 64 << 20;
// A file that wraps its state dict calls it one of these.
constexpr std::string_view kWrappers[] = {
    "state_dict", "model_state_dict", "model", "module", "ema", "params"};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

class TorchFileReader {
 public:
  explicit TorchFileReader(DiskFile file) : torch_(std::move(file)) {}

  TorchFile read() {
    check_kind();
    entries_ = read_zip_directory(torch_.file_);
    if (entries_.empty()) refuse("pth.format", "the archive is empty");
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      index_.insert(entries_[i].name, i, [&](std::uint32_t n) { return name(n); });
    }
    root_ = entries_[0].name.substr(0, entries_[0].name.find('/'));
    check_records();
    const ZipEntry* pickled = find("data.pkl");
    if (pickled == nullptr) {
      refuse("pth.format", fmt::format("the archive has no {}/data.pkl", printable(root_)));
    }
    if (pickled->bytes > limits::kPickleBytes) {
      refuse("pth.limit", fmt::format("data.pkl has {} bytes, at most {} are read", pickled->bytes,
                                      limits::kPickleBytes));
    }
    std::string text = content(*pickled);
    if (pickled->crc32 != 0 && crc32(text) != pickled->crc32) {
      note("data.pkl has another CRC-32 than the directory says");
    }
    const Pickle pickle(std::move(text), path());
    find_tensors(pickle);
    return std::move(torch_);
  }

 private:
  const std::string& path() const { return torch_.path(); }
  std::string_view name(std::uint32_t i) const { return entries_[i].name; }
  void note(const std::string& what) { torch_.notes_.push_back(path() + ": " + what); }
  [[noreturn]] void refuse(std::string_view rule, const std::string& what) const {
    fail(ErrorCode::input, "{}: {}: {}", path(), rule, what);
  }
  [[noreturn]] void refuse_kind(std::string_view what) const {
    fail(ErrorCode::input, fmt::format("{}: pth.format: {}", path(), what),
         {{"save it again with a current PyTorch", "or as safetensors"}});
  }

  const ZipEntry* find(std::string_view record) const {
    const auto i =
        index_.find(fmt::format("{}/{}", root_, record), [&](std::uint32_t n) { return name(n); });
    return i ? &entries_[*i] : nullptr;
  }
  std::string content(const ZipEntry& entry) const {
    std::string text(entry.bytes, '\0');
    torch_.file_.read(entry.offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  void check_kind() const {
    std::array<std::byte, kTarMark + 5> first{};
    const std::size_t bytes = std::min<std::uint64_t>(first.size(), torch_.file_.size());
    torch_.file_.read(0, std::span(first).first(bytes));
    const std::string_view text = as_text(first);
    if (text.starts_with(kZipMark)) return;
    if (text.starts_with(kLegacyMark)) refuse_kind("a file of PyTorch before 1.6");
    if (text.substr(kTarMark) == "ustar") refuse_kind("a tar file of PyTorch before 0.2");
    if (text.starts_with(kPreviewMark)) refuse_kind("a file of a preview of PyTorch 1.0");
    refuse_kind("neither a zip archive nor an older kind of PyTorch file");
  }

  void check_records() const {
    if (find("constants.pkl") != nullptr) refuse_kind("a TorchScript program, not a state dict");
    if (const ZipEntry* order = find("byteorder"); order != nullptr) {
      if (order->bytes > 16 || content(*order) != "little") {
        refuse("pth.format", "the byte order is not little");
      }
    }
    if (const ZipEntry* version = find("version"); version != nullptr) {
      std::string text = version->bytes > 16 ? "?" : content(*version);
      while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
      const bool known = text == "10" || (text.size() == 1 && text[0] >= '1' && text[0] <= '9');
      if (!known) refuse("pth.format", fmt::format("version \"{}\"", printable(text)));
    }
  }

  // The dict whose values are tensors: the whole, or what is behind one of the usual keys.
  static bool has_tensors(const Pickle& p, Pickle::Handle h) {
    if (p.kind(h) != Pickle::Kind::dict) return false;
    const auto items = p.items(h);
    for (std::size_t i = 1; i < items.size(); i += 2) {
      if (p.kind(items[i]) == Pickle::Kind::tensor) return true;
    }
    return false;
  }
  Pickle::Handle state_dict(const Pickle& p) {
    if (p.kind(p.root()) != Pickle::Kind::dict) refuse("pth.state_dict", "it holds no dict");
    if (has_tensors(p, p.root())) return p.root();
    std::optional<Pickle::Handle> found;
    std::string keys;
    const auto items = p.items(p.root());
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (p.kind(items[i]) != Pickle::Kind::text) continue;
      const std::string_view key = p.text(items[i]);
      if (keys.size() < 400) keys += fmt::format(" \"{}\"", printable(key));
      const bool usual =
          std::find(std::begin(kWrappers), std::end(kWrappers), key) != std::end(kWrappers);
      if (!usual || !has_tensors(p, items[i + 1])) continue;
      if (found) refuse("pth.state_dict", "more than one state dict:" + keys);
      found = items[i + 1];
      note(fmt::format("the tensors are those of \"{}\"", key));
    }
    if (!found) refuse("pth.state_dict", "no state dict among its keys:" + keys);
    return *found;
  }

  void find_tensors(const Pickle& p) {
    const auto items = p.items(state_dict(p));
    std::size_t others = 0;
    bool module = true;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (p.kind(items[i + 1]) != Pickle::Kind::tensor) {
        ++others;
        continue;
      }
      if (p.kind(items[i]) != Pickle::Kind::text) {
        refuse("pth.state_dict", "a tensor whose name is no text");
      }
      add(p, p.text(items[i]), p.tensor(items[i + 1]));
      module = module && torch_.tensors_.back().name.starts_with("module.");
    }
    if (others > 0) note(fmt::format("{} values that are no tensors are left out", others));
    if (module) {  // what DataParallel puts in front of every name
      for (TorchTensor& t : torch_.tensors_) t.name.erase(0, 7);
    }
    auto& tensors = torch_.tensors_;
    std::sort(tensors.begin(), tensors.end(), [](const TorchTensor& a, const TorchTensor& b) {
      return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
    });
    NameIndex names;
    const auto name_at = [&](std::uint32_t n) { return std::string_view(tensors[n].name); };
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      if (!names.insert(tensors[i].name, i, name_at)) continue;
      refuse("pth.state_dict",
             fmt::format("tensor \"{}\" is there twice", printable(tensors[i].name)));
    }
  }

  void add(const Pickle& p, std::string_view name, const Pickle::Tensor& t) {
    if (name.size() > limits::kNameBytes) {
      refuse("pth.limit", fmt::format("tensor name \"{}\" is longer than {} bytes", printable(name),
                                      limits::kNameBytes));
    }
    const Pickle::Storage& storage = p.storages()[t.storage];
    const std::uint64_t size = info(t.dtype).bits / 8;
    const ZipEntry* entry = find(fmt::format("data/{}", storage.key));
    if (entry == nullptr) {
      refuse("pth.storage", fmt::format("tensor \"{}\" lies in data/{}, which is not there",
                                        printable(name), storage.key));
    }
    const std::uint64_t unit = storage.untyped ? 1 : info(storage.dtype).bits / 8;
    if (storage.elements > entry->bytes || storage.elements * unit != entry->bytes) {
      refuse("pth.storage", fmt::format("data/{} has {} bytes, {} elements of {} are said to be it",
                                        storage.key, entry->bytes, storage.elements, unit));
    }
    if (!storage.untyped && t.dtype != storage.dtype) {
      refuse("pth.tensor", fmt::format("tensor \"{}\" is {}, its storage {}", printable(name),
                                       t.dtype, storage.dtype));
    }
    TorchTensor& out = torch_.tensors_.emplace_back();
    out.name = name;
    out.dtype = t.dtype;
    out.shape = t.shape;
    out.strides = t.strides;
    place(out, t.offset, entry->bytes / size, size);
    out.offset += entry->offset;
  }

  // Offsets in bytes from the storage; `room` is what the storage holds, in elements.
  void place(TorchTensor& t, std::uint64_t first, std::uint64_t room, std::uint64_t size) const {
    std::uint64_t elements = 1, last = first, packed = 1;
    bool overflow = false, empty = false;
    for (int i = t.shape.rank(); i-- > 0;) {
      const auto dim = static_cast<std::uint64_t>(t.shape[i]);
      const auto stride = static_cast<std::uint64_t>(t.strides[i]);
      std::uint64_t reach = 0;
      overflow |= __builtin_mul_overflow(elements, dim, &elements);
      empty |= dim == 0;
      if (dim > 1) {
        overflow |= __builtin_mul_overflow(dim - 1, stride, &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
        t.contiguous = t.contiguous && stride == packed;
      }
      overflow |= __builtin_mul_overflow(packed, std::max<std::uint64_t>(dim, 1), &packed);
    }
    overflow |= packed > 1ull << 62;  // of an empty one as well: its sizes are multiplied too
    if (empty && !overflow) {
      t.bytes = t.offset = 0;
      t.contiguous = true;
      return;
    }
    if (overflow || last >= room || elements > ~0ull / size) {
      refuse("pth.tensor", fmt::format("tensor \"{}\" of {} with strides {} at element {} reaches "
                                       "past its storage of {} elements",
                                       printable(t.name), t.shape, t.strides, first, room));
    }
    // A stride of 0 repeats elements: a few bytes of file could become any amount.
    if (elements > room) {
      refuse("pth.tensor", fmt::format("tensor \"{}\" of {} repeats the {} elements of its storage",
                                       printable(t.name), t.shape, room));
    }
    t.offset = first * size;
    t.bytes = elements * size;
  }

  TorchFile torch_;
  std::vector<ZipEntry> entries_;
  NameIndex index_;
  std::string root_;
};

bool TorchFile::is_one(std::span<const std::byte> first) {
  const std::string_view text = as_text(first);
  // A safetensors header of this length is possible too; its text begins right behind it.
  if (text.size() > 8 && text.substr(4, 5) == std::string_view("\0\0\0\0{", 5)) return false;
  return text.starts_with(kZipMark) || text.starts_with(kLegacyMark) ||
         text.starts_with(kPreviewMark);
}

TorchFile TorchFile::open(std::string path, DiskMode mode) {
  return TorchFileReader(DiskFile::open(std::move(path), mode)).read();
}

void TorchFile::read(const TorchTensor& t, std::uint64_t first, std::span<std::byte> to) const {
  const std::uint64_t size = info(t.dtype).bits / 8;
  check(to.size() % size == 0 && first <= t.bytes / size &&
            to.size() / size <= t.bytes / size - first,
        "{} bytes from element {} of {}", to.size(), first, printable(t.name));
  if (t.contiguous) return file_.read(t.offset + first * size, to);
  std::uint64_t span = size;  // from the first element to the end of the last
  for (int d = 0; d < t.shape.rank(); ++d) {
    span += static_cast<std::uint64_t>((t.shape[d] - 1) * t.strides[d]) * size;
  }
  std::vector<std::byte> window(std::min(span, kGatherBytes));
  std::uint64_t begin = 0, end = 0;  // what of the file is in the window
  for (std::uint64_t i = 0; i < to.size() / size; ++i) {
    std::uint64_t rest = first + i, at = t.offset;
    for (int d = t.shape.rank(); d-- > 0;) {
      const auto dim = static_cast<std::uint64_t>(t.shape[d]);
      at += rest % dim * static_cast<std::uint64_t>(t.strides[d]) * size;
      rest /= dim;
    }
    if (at < begin || at + size > end) {
      begin = span <= kGatherBytes ? t.offset : at;
      end = std::min(t.offset + span, begin + window.size());
      file_.read(begin, std::span(window).first(end - begin));
    }
    std::memcpy(to.data() + i * size, window.data() + (at - begin), size);
  }
}

}  // namespace ballast
