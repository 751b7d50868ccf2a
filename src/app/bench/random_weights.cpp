#include "app/bench/random_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/convert.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::int64_t kPattern = 16 << 20;  // random elements, repeated: more than any cache holds
constexpr float kSize = 0.014f;              // about 1 / sqrt(5120)

constexpr DType kVectors = DType::bf16;  // whatever the matrices are, as in published files

bool is_gain(const std::string& name) {
  return name.find("norm") != std::string::npos && name.ends_with(".weight");
}

std::string path_in(const std::string& folder) {
  return fmt::format("{}/ballast-random-weights-{}.bin", folder, getpid());
}

int made(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) fail_io(path, "make the file of random weights", errno);
  return fd;
}

class PatternFile {
 public:
  PatternFile(const std::string& path, DType matrices, std::uint64_t total)
      : path_(path),
        fd_(made(path)),
        progress_("writing random weights", static_cast<std::int64_t>(total),
                  Progress::Unit::bytes) {
    std::vector<float> values(kPattern);
    fill_normal(random_source(1, "random weights", 0, "pattern"), 0, values.data(), kPattern);
    for (float& v : values) v *= kSize;
    const auto as = [&](DType dtype) {
      std::vector<std::byte> bytes(values.size() * size_of(dtype));
      convert(values.data(), DType::f32, bytes.data(), dtype, kPattern);
      return bytes;
    };
    vectors_ = as(kVectors);
    matrices_ = as(matrices);
    std::ranges::fill(values, 1.0f);
    ones_ = as(kVectors);
  }
  ~PatternFile() { ::close(fd_); }

  void write(const StoredTensor& t) {
    const std::uint64_t bytes = t.data.extent.bytes;
    const std::vector<std::byte>& from = is_gain(t.name)            ? ones_
                                         : t.data.dtype == kVectors ? vectors_
                                                                    : matrices_;
    for (std::uint64_t done = 0; done < bytes;) {
      const std::size_t piece = std::min<std::uint64_t>(bytes - done, from.size());
      const ssize_t n = ::write(fd_, from.data(), piece);
      if (n <= 0) fail_io(path_, "write random weights", errno);
      done += static_cast<std::uint64_t>(n);
      progress_.add(n);
    }
  }
  // Out of the page cache, so that it is the disk that is measured.
  void finish() {
    if (fsync(fd_) != 0) fail_io(path_, "write random weights", errno);
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  std::string path_;
  int fd_;
  Progress progress_;
  std::vector<std::byte> vectors_, matrices_, ones_;
};

}  // namespace

RandomWeights::RandomWeights(const wan::Config& config, DType stored, Blocks blocks,
                             const Place& place)
    : path_(place.kept.empty() ? path_in(place.folder) : place.kept),
      kept_(!place.kept.empty()),
      groups_(planned_groups(config, kVectors)) {
  // Offsets first: groups 1 to layers are the blocks.
  const auto is_copy = [&](std::size_t g) {
    return blocks == Blocks::alike && g > 1 && g <= to_size(config.layers);
  };
  std::uint64_t end = 0;
  std::vector<const StoredTensor*> written;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t t = 0; t < groups_[g].tensors.size(); ++t) {
      StoredBytes& data = groups_[g].tensors[t].data;
      if (!groups_[g].keep_precision && data.shape.rank() == 2) data.dtype = stored;
      data.extent.bytes = static_cast<std::uint64_t>(data.shape.elements()) * size_of(data.dtype);
      data.extent.offset = is_copy(g) ? groups_[1].tensors[t].data.extent.offset : end;
      if (is_copy(g)) continue;
      end += data.extent.bytes;
      written.push_back(&groups_[g].tensors[t]);
    }
  }
  if (kept_ && path_exists(path_)) {
    open();
    if (bytes() != end) {
      fail(ErrorCode::usage,
           fmt::format("{}: {} of random weights expected ({} bytes), found {} ({} bytes)", path_,
                       Bytes{end}, end, Bytes{bytes()}, bytes()),
           {{"another name", "makes a file for this model"}});
    }
  } else {
    write(stored, end, written);
  }
}

RandomWeights::RandomWeights(std::vector<WeightGroup> groups, const std::string& folder)
    : path_(path_in(folder)), groups_(std::move(groups)) {
  std::vector<const StoredTensor*> first;  // of every shape and kind
  std::uint64_t end = 0;
  for (WeightGroup& g : groups_) {
    for (StoredTensor& t : g.tensors) {
      const auto same = std::ranges::find_if(first, [&](const StoredTensor* f) {
        return f->data.shape == t.data.shape && is_gain(f->name) == is_gain(t.name);
      });
      t.data.extent.offset = same == first.end() ? end : (*same)->data.extent.offset;
      if (same != first.end()) continue;
      end += t.data.extent.bytes;
      first.push_back(&t);
    }
  }
  write(kVectors, end, first);
}

// Under another name until it is whole.
void RandomWeights::write(DType matrices, std::uint64_t bytes,
                          const std::vector<const StoredTensor*>& tensors) {
  const std::string part = path_ + ".part";
  try {
    PatternFile file(part, matrices, bytes);
    for (const StoredTensor* t : tensors) file.write(*t);
    file.finish();
    std::filesystem::rename(part, path_);
    open();
  } catch (...) {
    std::error_code ignored;
    for (const std::string& p : {part, path_}) std::filesystem::remove(p, ignored);
    throw;
  }
}

void RandomWeights::open() {
  file_ = std::make_unique<DiskFile>(DiskFile::open(path_));
  for (WeightGroup& g : groups_) {
    for (StoredTensor& t : g.tensors) t.data.extent.file = file_.get();
  }
}

RandomWeights::~RandomWeights() {
  if (kept_) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace ballast
