// Bytes a second of a cached latent (81 frames of 832 x 480 in f32, 8.4 MB) that is read as the
// prefetcher reads it, with the checksum that Ballast writes and without, and of the checksum
// alone.

#include <benchmark/benchmark.h>

#include "core/checksum.h"
#include "core/to_size.h"
#include "data/cache_file.h"
#include "data/latent_cache.h"
#include "tests/support/temp_dir.h"

namespace ballast::data {
namespace {

constexpr LatentShape kLatent{16, 21, 60, 104};

void read_latent_file(benchmark::State& state) {
  const test::TempDir dir;
  std::vector<float> values(to_size(kLatent.elements()), 0.5f);
  const std::string path = dir.path("latent.safetensors");
  SafetensorsWriter writer;
  add_values(writer, "latent", {kLatent.elements()}, values, DType::f32);
  if (state.range(0) != 0) writer.add_checksums();
  writer.write(path, Durability::process);
  for (auto _ : state) {
    const CacheFile file = CacheFile::open(path);
    file.read(file.get("latent"), values);
    benchmark::DoNotOptimize(values.data());
  }
  state.SetBytesProcessed(state.iterations() * kLatent.elements() * 4);
}
BENCHMARK(read_latent_file)->ArgName("checksum")->Arg(0)->Arg(1);

void checksum_alone(benchmark::State& state) {
  const std::vector<std::byte> bytes(to_size(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(checksum_of(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(checksum_alone)->ArgName("bytes")->Arg(512)->Arg(64 << 10)->Arg(16 << 20);

}  // namespace
}  // namespace ballast::data
