#include "app/bench/random_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/convert.h"
#include "core/progress.h"
#include "core/random.h"
#include "io/safetensors_writer.h"

namespace ballast {
namespace {

constexpr std::int64_t kRepeated = 4 << 20;  // random elements, repeated

bool is_norm_gain(const std::string& name) {
  return name.ends_with(".gamma") || name.find("norm") != std::string::npos;
}

}  // namespace

RandomCheckpoint::RandomCheckpoint(const std::vector<RandomTensor>& tensors, DType dtype,
                                   const std::string& folder)
    : path_(fmt::format("{}/ballast-random-{}.safetensors", folder, getpid())) {
  std::vector<float> values(kRepeated);
  fill_normal(random_source(1, "random checkpoint", 0, "pattern"), 0, values.data(), kRepeated);
  const auto scaled = [&](float size) {
    std::vector<float> some = values;
    for (float& v : some) v *= size;
    std::vector<std::byte> bytes(some.size() * size_of(dtype));
    convert(some.data(), DType::f32, bytes.data(), dtype, kRepeated);
    return bytes;
  };
  // About 1 / sqrt(terms) of the sums that they are part of.
  const std::vector<std::byte> matrices = scaled(0.015f);
  std::ranges::fill(values, 1.0f);
  const std::vector<std::byte> ones = scaled(1.0f);
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}, .alignment = 4096});
  std::uint64_t total = 0;
  for (const RandomTensor& t : tensors) {
    total += static_cast<std::uint64_t>(t.shape.elements()) * size_of(dtype);
  }
  Progress progress("writing random weights", static_cast<std::int64_t>(total),
                    Progress::Unit::bytes);
  for (const RandomTensor& t : tensors) {
    const std::vector<std::byte>& from = is_norm_gain(t.name) ? ones : matrices;
    const auto bytes = static_cast<std::uint64_t>(t.shape.elements()) * size_of(dtype);
    writer.add(t.name, dtype, t.shape, [&from, &progress, bytes](const ByteSink& sink) {
      for (std::uint64_t done = 0; done < bytes;) {
        const std::size_t piece = std::min<std::uint64_t>(bytes - done, from.size());
        sink(std::span(from).first(piece));
        done += piece;
        progress.add(static_cast<std::int64_t>(piece));
      }
    });
  }
  writer.write(path_);
  drop_cache();
}

void RandomCheckpoint::drop_cache() const {
  if (const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

RandomCheckpoint::~RandomCheckpoint() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace ballast
