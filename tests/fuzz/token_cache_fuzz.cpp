// The cache of tokenised texts. The first byte chooses:
//   'R'       a file as it is
//   anything  the same with right checksums in its last 96 bytes

#include <cstring>
#include <vector>

#include "core/checksum.h"
#include "core/to_size.h"
#include "data/token_cache.h"
#include "fuzz.h"

namespace ballast::fuzz {
namespace {

constexpr std::size_t kFooter = 96, kBodySum = 16, kOwnSum = 8;  // from the end

void put_sums(std::string& file) {
  if (file.size() < kFooter) return;
  const auto put = [&](std::size_t begin, std::size_t bytes, std::size_t from_end) {
    Checksum sum;
    sum.add(bytes_of(std::string_view(file).substr(begin, bytes)));
    const std::uint64_t value = sum.value();
    std::memcpy(file.data() + file.size() - from_end, &value, sizeof value);
  };
  put(0, file.size() - kFooter, kBodySum);
  put(file.size() - kFooter, kFooter - kOwnSum, kOwnSum);
}

}  // namespace

void one_input(Input input) {
  static MemoryFile stored("tokens");
  const bool raw = input.byte() == 'R';
  std::string file(input.rest());
  if (!raw) put_sums(file);
  stored.write(file);
  accepts([&] {
    const data::TokenCache cache = data::TokenCache::open(stored.path());
    for (std::int64_t i = 0; i < cache.samples(); ++i) {
      const data::PairLength length = cache.length(i);
      require(length.source <= cache.longest().source && length.target <= cache.longest().target);
      std::vector<std::int32_t> source(to_size(length.source));
      std::vector<std::int32_t> target(to_size(length.target));
      cache.read(i, source, target);
    }
  });
}

}  // namespace ballast::fuzz
