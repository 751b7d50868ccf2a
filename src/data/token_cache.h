#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/checksum.h"
#include "core/to_size.h"
#include "data/text_pairs.h"
#include "data/tokenizer.h"
#include "memory/disk_file.h"

namespace ballast::data {

// Tokens of one sample, </s> included.
struct PairLength {
  std::int64_t source = 0, target = 0;

  friend bool operator==(const PairLength&, const PairLength&) = default;
};

struct TokenOptions {
  TextPairOptions texts = {};
  std::int64_t max_source = 256, max_target = 512;  // tokens, </s> included; the rest is cut off
};

// What became of a file's records.
struct PairCounts {
  std::uint64_t records = 0;      // of the file
  std::uint64_t low_quality = 0;  // left out
  std::uint64_t empty = 0;        // left out: no source or no target
  std::uint64_t cut = 0;          // of those that are there: longer than allowed

  template <class Self, class Visit>
  static void each(Self& c, Visit&& visit) {
    visit(c.records);
    visit(c.low_quality);
    visit(c.empty);
    visit(c.cut);
  }
};

// The tokenised texts of one file. Its ids stay on disk; in memory are 16 bytes for every sample.
//
// The file: ids of all samples, source then target, in 2 or 4 bytes each; of each sample both
// lengths in 2 bytes each; 96 bytes that say how many there are, what the file was made of, and a
// checksum of all before. Numbers are little-endian.
class TokenCache {
 public:
  // Every byte is read and checked. Fails with ErrorCode::input.
  static TokenCache open(const std::string& path);

  // To plan with before there is a tokenizer: so many samples, every one of that length, and no
  // ids.
  static TokenCache assumed(std::int64_t samples, PairLength length);

  std::string path() const { return file_ ? file_->path() : std::string(); }
  const std::string& key() const { return key_; }
  const PairCounts& counts() const { return counts_; }
  std::int64_t samples() const { return std::ssize(lengths_); }
  PairLength length(std::int64_t sample) const {
    const Lengths& l = lengths_[to_size(sample)];
    return {l.source, l.target};
  }
  PairLength longest() const { return longest_; }
  Bytes memory() const {
    return Bytes{lengths_.size() *
                 (sizeof(Lengths) + sizeof(std::uint64_t) + sizeof(std::uint32_t))};
  }

  // The spans have the lengths of the sample. Allocates nothing; several threads may read. Fails
  // (ErrorCode::input) where the sample's bytes are not those that open() read.
  void read(std::int64_t sample, std::span<std::int32_t> source,
            std::span<std::int32_t> target) const;

 private:
  struct Lengths {
    std::uint16_t source = 0, target = 0;
  };
  explicit TokenCache(std::optional<DiskFile> file) : file_(std::move(file)) {}
  void sum_samples(Checksum& all);

  std::optional<DiskFile> file_;  // none: assumed()
  std::string key_;
  PairCounts counts_;
  std::vector<Lengths> lengths_;
  std::vector<std::uint64_t> starts_;  // of the first id, in ids
  std::vector<std::uint32_t> sums_;    // of the sample's bytes, when they were checked
  std::size_t id_bytes_ = 2;
  PairLength longest_;
};

// What a cache is made of: the bytes of the texts and of the tokenizer, and the options.
std::string token_cache_key(const std::string& texts, const Tokenizer& tokenizer,
                            const TokenOptions& options);

using OnBytes = std::function<void(std::uint64_t bytes)>;  // of the texts, so many more are done

// The cache of a file of texts in `folder`: the one that is there when it was made of the same
// bytes in the same way, else it is made anew by so many threads (records are parsed and tokenised
// side by side, about 4 MiB of them at a time) and appears complete or not at all. The texts are
// read before that only where a cache of a file of that name is there to be compared with. Fails
// with ErrorCode::input where a record is broken, and where none is left.
TokenCache make_token_cache(const std::string& texts, const Tokenizer& tokenizer,
                            const TokenOptions& options, const std::string& folder, int threads,
                            const OnBytes& on_bytes = nullptr);

}  // namespace ballast::data
