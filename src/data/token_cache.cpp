#include "data/token_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/thread_pool.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"

namespace ballast::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMark = {'B', 'L', 'T', 'O', 'K', 'E', 'N', '1'};
constexpr std::int64_t kMaxTokens = 65'535;
constexpr std::uint64_t kMaxSamples = 1ull << 32;
constexpr std::size_t kRoundBytes = 4 << 20, kRoundRecords = 8192;
constexpr std::int64_t kTaskRecords = 32;
constexpr std::string_view kCacheEnd = ".tokens";
constexpr std::size_t kIdPieceBytes = 1 << 20;  // more than the longest sample has
static_assert(kIdPieceBytes >= 2 * kMaxTokens * sizeof(std::int32_t));

void check_lengths(std::int64_t source, std::int64_t target) {
  if (std::min(source, target) >= 1 && std::max(source, target) <= kMaxTokens) return;
  fail(ErrorCode::usage, "texts of {} and {} tokens: 1 to {} are possible", source, target,
       kMaxTokens);
}

struct Footer {
  std::array<char, 8> mark = kMark;
  std::array<char, 16> key{};
  std::uint64_t samples = 0, ids = 0, id_bytes = 0;
  std::array<std::uint64_t, 4> counts{};
  std::uint64_t checksum = 0;  // of all before the footer
  std::uint64_t own = 0;       // of the footer before this field
};
static_assert(sizeof(Footer) == 96);

std::uint64_t own_checksum(const Footer& f) {
  Checksum sum;
  sum.add(std::as_bytes(std::span(&f, 1)).first(offsetof(Footer, own)));
  return sum.value();
}

// A few hundred bytes each: half the bits find a change as well.
std::uint32_t sample_sum(std::span<const std::byte> source, std::span<const std::byte> target) {
  return static_cast<std::uint32_t>(checksum_of(source) + 3 * checksum_of(target));
}

template <class Visit>
void each_piece(const DiskFile& file, std::uint64_t bytes, Visit&& visit) {
  std::vector<std::byte> piece(std::min<std::uint64_t>(bytes, kIdPieceBytes));
  for (std::uint64_t at = 0; at < bytes;) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), bytes - at));
    file.read(at, part);
    visit(part);
    at += part.size();
  }
}

std::string content_text(std::uint64_t bytes, const Checksum& sum) {
  return fmt::format("{}:{}", bytes, sum.text());
}

std::string content_of(const std::string& path) {
  const DiskFile file = DiskFile::open(path, DiskMode::buffered);
  Checksum sum;
  each_piece(file, file.size(), [&](std::span<const std::byte> b) { sum.add(b); });
  return content_text(file.size(), sum);
}

std::string key_of(const std::string& content, const std::string& texts, const Tokenizer& tokenizer,
                   const TokenOptions& o) {
  return checksum_text(fmt::format(
      "1|{}|{}|{}|{}|{}|{}|{}|{}|{}", content, content_of(tokenizer.path()),
      static_cast<int>(record_format(texts)), o.texts.source_column, o.texts.target_column,
      o.texts.source_prefix, o.texts.min_quality, o.max_source, o.max_target));
}

std::string stem_of_caches(const std::string& texts) {
  return std::filesystem::path(texts).filename().string() + "-";
}

std::string cache_name(const std::string& texts, const std::string& key) {
  return stem_of_caches(texts) + key + std::string(kCacheEnd);
}

// Whether the folder holds a cache of a file of that name, of whatever content.
bool has_caches_of(const std::string& texts, const std::string& folder) {
  const std::string stem = stem_of_caches(texts);
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(stem) && name.ends_with(kCacheEnd)) return true;
  }
  return false;
}

// One record's outcome; an error waits until it is known that no earlier record has one.
struct Tokenised {
  std::vector<std::int32_t> source, target;
  enum class Fate : std::uint8_t { kept, low_quality, empty } fate = Fate::kept;
  bool cut = false;
  std::exception_ptr error;
};

class CacheWriter {
 public:
  CacheWriter(const std::string& path, const Tokenizer& tokenizer)
      : file_(path), wide_(tokenizer.vocab_size() > 65'536) {}

  void add(const Tokenised& t) {
    put(t.source), put(t.target);
    lengths_.push_back(static_cast<std::uint16_t>(t.source.size()));
    lengths_.push_back(static_cast<std::uint16_t>(t.target.size()));
    footer_.ids += t.source.size() + t.target.size();
    if (pending_.size() > kRoundBytes) flush();
  }
  std::uint64_t samples() const { return lengths_.size() / 2; }

  // name: the file's, in the folder of `path`. Returns its path.
  std::string finish(const std::string& name, const std::string& key, const PairCounts& counts) {
    flush();
    write(std::as_bytes(std::span(lengths_)));
    std::ranges::copy(key, footer_.key.begin());
    footer_.samples = samples();
    footer_.id_bytes = wide_ ? 4 : 2;
    std::size_t i = 0;
    PairCounts::each(counts, [&](std::uint64_t n) { footer_.counts[i++] = n; });
    footer_.checksum = sum_.value();
    footer_.own = own_checksum(footer_);
    file_.write(std::as_bytes(std::span(&footer_, 1)));
    file_.set_name(name);
    file_.commit(Durability::process);  // it can be made again
    return file_.path();
  }

 private:
  void put(const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
      const auto bytes = std::bit_cast<std::array<char, 4>>(id);
      pending_.append(bytes.data(), wide_ ? 4 : 2);
    }
  }
  void flush() {
    write(std::as_bytes(std::span(pending_)));
    pending_.clear();
  }
  void write(std::span<const std::byte> bytes) {
    sum_.add(bytes);
    file_.write(bytes);
  }

  AtomicFile file_;
  bool wide_;
  std::string pending_;
  std::vector<std::uint16_t> lengths_;
  Checksum sum_;
  Footer footer_;
};

// The ids of a text, at most `most` with </s> at the end.
bool encode_cut(const Tokenizer& tokenizer, std::string_view text, std::int64_t most,
                std::vector<std::int32_t>& ids) {
  ids = tokenizer.encode(text);
  const auto room = to_size(most - 1);
  const bool cut = ids.size() > room;
  if (cut) ids.resize(room);
  ids.push_back(tokenizer.eos_id());
  return cut;
}

void tokenise(const RawRecord& record, const PairColumns& columns, const Tokenizer& tokenizer,
              const TokenOptions& o, Tokenised& t) try {
  t = {};
  const TextPair pair = columns.parse(record);
  if (pair.quality < o.texts.min_quality) {
    t.fate = Tokenised::Fate::low_quality;
  } else if (pair.source.empty() || pair.target.empty()) {
    t.fate = Tokenised::Fate::empty;
  } else {
    t.cut = encode_cut(tokenizer, pair.source, o.max_source, t.source);
    t.cut = encode_cut(tokenizer, pair.target, o.max_target, t.target) || t.cut;
  }
} catch (const Error&) {
  t.error = std::current_exception();
}

// The texts are read once: their checksum, which is part of the cache's name, is complete when the
// last record is tokenised. Returns the path.
std::string write_cache(const std::string& folder, const std::string& texts,
                        const Tokenizer& tokenizer, const TokenOptions& o, int threads,
                        const OnBytes& on_bytes) {
  RecordReader reader = RecordReader::open(texts);
  std::vector<RawRecord> records(1);
  if (!reader.next(records[0])) {
    fail(ErrorCode::input, "{} holds no record", texts);
  }
  const PairColumns columns(o.texts, reader.format(), records[0], texts);
  // Of a CSV the first record is the header.
  std::size_t filled = reader.format() == RecordFormat::json_lines ? 1 : 0;
  CacheWriter writer(fmt::format("{}/{}", folder, cache_name(texts, "new")), tokenizer);
  PairCounts counts;
  ThreadPool pool(std::max(1, threads));
  std::vector<Tokenised> done;
  bool more = true;
  for (std::uint64_t told = 0; more || filled > 0;) {
    std::size_t bytes = 0;
    for (; more && filled < kRoundRecords && bytes < kRoundBytes; ++filled) {
      if (records.size() <= filled) records.emplace_back();
      more = reader.next(records[filled]);
      if (!more) break;
      bytes += records[filled].text.size();
    }
    if (done.size() < filled) done.resize(filled);
    const auto count = static_cast<std::int64_t>(filled);
    pool.parallel((count + kTaskRecords - 1) / kTaskRecords, [&](std::int64_t task, int) {
      const std::int64_t end = std::min(count, (task + 1) * kTaskRecords);
      for (std::int64_t i = task * kTaskRecords; i < end; ++i) {
        const auto k = to_size(i);
        tokenise(records[k], columns, tokenizer, o, done[k]);
      }
    });
    for (std::size_t i = 0; i < filled; ++i) {
      if (done[i].error) std::rethrow_exception(done[i].error);
      ++counts.records;
      counts.low_quality += done[i].fate == Tokenised::Fate::low_quality;
      counts.empty += done[i].fate == Tokenised::Fate::empty;
      counts.cut += done[i].cut;
      if (done[i].fate == Tokenised::Fate::kept) writer.add(done[i]);
    }
    filled = 0;
    if (on_bytes) on_bytes(reader.done() - told);
    told = reader.done();
  }
  if (writer.samples() == 0) {
    fail(ErrorCode::input,
         "{} holds no text to train with: of {} records {} have a quality_score below "
         "{:g}, {} have an empty column",
         texts, counts.records, counts.low_quality, o.texts.min_quality, counts.empty);
  }
  const std::string key =
      key_of(content_text(reader.size(), reader.checksum()), texts, tokenizer, o);
  return writer.finish(cache_name(texts, key), key, counts);
}

}  // namespace

std::string token_cache_key(const std::string& texts, const Tokenizer& tokenizer,
                            const TokenOptions& o) {
  return key_of(content_of(texts), texts, tokenizer, o);
}

TokenCache TokenCache::assumed(std::int64_t samples, PairLength length) {
  check_lengths(length.source, length.target);
  TokenCache cache(std::nullopt);
  cache.lengths_.assign(to_size(samples), {static_cast<std::uint16_t>(length.source),
                                           static_cast<std::uint16_t>(length.target)});
  cache.starts_.assign(cache.lengths_.size(), 0);
  cache.counts_.records = static_cast<std::uint64_t>(samples);
  cache.longest_ = length;
  return cache;
}

TokenCache TokenCache::open(const std::string& path) {
  TokenCache cache(DiskFile::open(path, DiskMode::buffered));
  const auto refuse = [&](const char* what) {
    fail(ErrorCode::input, fmt::format("{} is no whole token cache: {}", path, what),
         {{"remove it", "it is made again from the texts"}});
  };
  Footer f;
  const std::uint64_t size = cache.file_->size();
  if (size < sizeof(f)) refuse("too short");
  cache.file_->read(size - sizeof(f), std::as_writable_bytes(std::span(&f, 1)));
  if (f.mark != kMark || f.own != own_checksum(f)) refuse("its end is not that of one");
  if (f.id_bytes != 2 && f.id_bytes != 4) refuse("the width of its ids");
  if (f.samples == 0 || f.samples > kMaxSamples || f.ids > size ||
      f.ids * f.id_bytes + f.samples * sizeof(Lengths) + sizeof(f) != size) {
    refuse("its size");
  }
  cache.id_bytes_ = f.id_bytes;
  cache.lengths_.resize(f.samples);
  const std::span<std::byte> lengths = std::as_writable_bytes(std::span(cache.lengths_));
  cache.file_->read(f.ids * f.id_bytes, lengths);
  cache.starts_.reserve(f.samples);
  std::uint64_t at = 0;
  for (const Lengths& l : cache.lengths_) {
    cache.starts_.push_back(at);
    at += std::uint64_t{l.source} + l.target;
    if (l.source == 0 || l.target == 0) refuse("a sample without tokens");
    cache.longest_.source = std::max<std::int64_t>(cache.longest_.source, l.source);
    cache.longest_.target = std::max<std::int64_t>(cache.longest_.target, l.target);
  }
  if (at != f.ids) refuse("lengths and ids");
  Checksum sum;
  cache.sum_samples(sum);
  sum.add(lengths);
  if (sum.value() != f.checksum) refuse("its checksum");
  cache.key_.assign(f.key.data(), f.key.size());
  std::size_t i = 0;
  PairCounts::each(cache.counts_, [&](std::uint64_t& n) { n = f.counts[i++]; });
  return cache;
}

// Reads all ids, in pieces of whole samples.
void TokenCache::sum_samples(Checksum& all) {
  std::vector<std::byte> piece(kIdPieceBytes);
  const auto bytes_of = [&](std::uint64_t ids) { return to_size(ids * id_bytes_); };
  sums_.reserve(lengths_.size());
  std::uint64_t at = 0;
  for (std::size_t next = 0; next < lengths_.size();) {
    std::size_t end = next, bytes = 0;
    for (; end < lengths_.size(); ++end) {
      const std::size_t more = bytes_of(std::uint64_t{lengths_[end].source} + lengths_[end].target);
      if (bytes + more > piece.size()) break;
      bytes += more;
    }
    std::span<const std::byte> rest = std::span(piece).first(bytes);
    file_->read(at, std::span(piece).first(bytes));
    all.add(rest);
    at += bytes;
    for (; next < end; ++next) {
      const std::size_t source = bytes_of(lengths_[next].source);
      const std::size_t target = bytes_of(lengths_[next].target);
      sums_.push_back(sample_sum(rest.first(source), rest.subspan(source, target)));
      rest = rest.subspan(source + target);
    }
  }
}

void TokenCache::read(std::int64_t sample, std::span<std::int32_t> source,
                      std::span<std::int32_t> target) const {
  const PairLength n = length(sample);
  check(std::ssize(source) == n.source && std::ssize(target) == n.target,
        "sample {} has {} and {} tokens, not {} and {}", sample, n.source, n.target, source.size(),
        target.size());
  const std::uint64_t start = starts_[to_size(sample)] * id_bytes_;
  // Into the upper half where an id has two bytes, from where they spread.
  const auto bytes_of = [&](std::span<std::int32_t> to) {
    const std::span<std::byte> all = std::as_writable_bytes(to);
    return id_bytes_ == 4 ? all : all.subspan(all.size() / 2);
  };
  const std::span<std::byte> first = bytes_of(source), second = bytes_of(target);
  file_->read(start, first);
  file_->read(start + first.size(), second);
  const std::uint32_t expected = sums_[to_size(sample)];
  if (const std::uint32_t sum = sample_sum(first, second); sum != expected) {
    fail(ErrorCode::input,
         fmt::format("{}: sample {} at byte {} is not what it was when the run began: the checksum "
                     "is {:08x}, it was {:08x}",
                     file_->path(), sample, start, sum, expected),
         {{"remove the file and start again", "it is made again from the texts"}});
  }
  if (id_bytes_ == 4) return;
  for (const std::span<std::int32_t> to : {source, target}) {
    const std::span<std::byte> half = bytes_of(to);
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::uint16_t id = 0;
      std::memcpy(&id, half.data() + 2 * i, 2);
      to[i] = id;
    }
  }
}

TokenCache make_token_cache(const std::string& texts, const Tokenizer& tokenizer,
                            const TokenOptions& options, const std::string& folder, int threads,
                            const OnBytes& on_bytes) {
  check_lengths(options.max_source, options.max_target);
  if (has_caches_of(texts, folder)) {
    const std::string key = token_cache_key(texts, tokenizer, options);
    const std::string path = fmt::format("{}/{}", folder, cache_name(texts, key));
    if (path_exists(path)) {
      try {
        TokenCache there = TokenCache::open(path);
        if (there.key() == key) return there;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::input) throw;  // broken: made again
      }
    }
  }
  create_folders(folder);
  return TokenCache::open(write_cache(folder, texts, tokenizer, options, threads, on_bytes));
}

}  // namespace ballast::data
