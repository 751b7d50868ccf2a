// A PyTorch file. The first byte chooses:
//   'Z'  a file as it is
//   'P'  a pickle, put into a zip archive beside two storages of 256 bytes
// Tensors that are accepted lie in the file and can be read.

#include <algorithm>
#include <string>
#include <vector>

#include "core/crc32.h"
#include "fuzz.h"
#include "io/torch_file.h"

namespace ballast::fuzz {
namespace {

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

class ZipFile {
 public:
  void add(std::string_view name, std::string_view data) {
    const std::uint64_t offset = file_.size();
    std::string common;
    put(common, 0, 6);  // flags, method, time
    put(common, 0, 2);  // date
    put(common, crc32(data), 4);
    put(common, data.size(), 4);
    put(common, data.size(), 4);
    put(common, name.size(), 2);
    put(common, 0, 2);  // extra field
    file_ += "PK\3\4";
    put(file_, 20, 2);
    ((file_ += common) += name) += data;
    directory_ += "PK\1\2";
    put(directory_, 20, 2);
    put(directory_, 20, 2);
    directory_ += common;
    directory_.append(10, '\0');  // comment, disk, attributes
    put(directory_, offset, 4);
    directory_ += name;
    ++entries_;
  }
  std::string finished() {
    const std::uint64_t start = file_.size();
    file_ += directory_;
    file_ += "PK\5\6";
    put(file_, 0, 4);
    put(file_, entries_, 2);
    put(file_, entries_, 2);
    put(file_, directory_.size(), 4);
    put(file_, start, 4);
    put(file_, 0, 2);
    return file_;
  }

 private:
  std::string file_, directory_;
  std::uint64_t entries_ = 0;
};

std::string archive_of(std::string_view pickle) {
  const std::string storage(256, '\x3c');
  ZipFile zip;
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/data/0", storage);
  zip.add("archive/data/1", storage);
  zip.add("archive/version", "3\n");
  return zip.finished();
}

}  // namespace

void one_input(Input input) {
  static MemoryFile file("model.pth");
  const std::uint8_t kind = input.byte();
  if (kind != 'Z' && kind != 'P') return;
  file.write(kind == 'Z' ? std::string(input.rest()) : archive_of(input.rest()));
  accepts([&] {
    const TorchFile torch = TorchFile::open(file.path(), DiskMode::buffered);
    for (const TorchTensor& t : torch.tensors()) {
      require(t.offset <= torch.file().size() && t.shape.elements() >= 0);
      const std::size_t element = info(t.dtype).bits / 8;
      const std::size_t elements = element == 0 ? 0 : std::min<std::size_t>(t.bytes / element, 16);
      std::vector<std::byte> bytes(elements * element);
      if (!bytes.empty()) torch.read(t, 0, bytes);
    }
  });
}

}  // namespace ballast::fuzz
