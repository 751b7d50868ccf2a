#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checksum.h"
#include "memory/disk_file.h"

namespace ballast::data {

// Training texts in files of records: JSON Lines (one object per line) or CSV with a header
// (RFC 4180: fields in quotes may hold commas, doubled quotes and line ends; .tsv: with tabs).
// Read piece by piece, never as a whole. Hostile or broken records are an Error (ErrorCode::input)
// with the number of the line they begin at.

inline constexpr std::size_t kMaxRecordBytes = 16 << 20;

struct TextPairOptions {
  // Names of columns. "": of JSON `input` and the first of `output`, `target`, `summary`, where the
  // first record has them; otherwise the first and the second column.
  std::string source_column = {}, target_column = {};
  std::string source_prefix = {};  // put before every source
  double min_quality = 0.6;        // records with a lower quality_score are dropped
};

enum class RecordFormat : std::uint8_t { json_lines, csv, tsv };
// By the ending of the name: .csv, .tsv, else JSON Lines (.json, .jsonl, .ndjson, .txt).
RecordFormat record_format(std::string_view path);

// One record as it stands in the file.
struct RawRecord {
  std::string text;
  std::uint64_t line = 0;  // it begins at, from 1
};

// The records of a file in order. Empty lines are none.
class RecordReader {
 public:
  static RecordReader open(const std::string& path);

  RecordFormat format() const { return format_; }
  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return file_.size(); }
  std::uint64_t done() const { return offset_ - (buffer_.size() - at_); }  // bytes
  bool next(RawRecord& record);                                            // false at the end
  // Of the bytes read so far: of the whole file once next() was false.
  const Checksum& checksum() const { return sum_; }

 private:
  explicit RecordReader(DiskFile file, RecordFormat format)
      : file_(std::move(file)), format_(format) {}
  bool fill();  // false: nothing is left in the file

  DiskFile file_;
  RecordFormat format_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::uint64_t offset_ = 0;  // read so far
  std::uint64_t line_ = 1;
  Checksum sum_;
};

struct TextPair {
  std::string source, target;
  double quality = 1;
};

// Where the two texts stand in every record of a file: found out once, from its first record.
class PairColumns {
 public:
  // first: the first record, which of a CSV is the header.
  PairColumns(const TextPairOptions& options, RecordFormat format, const RawRecord& first,
              std::string path);

  const std::string& source() const { return source_; }
  const std::string& target() const { return target_; }
  // A record's texts; may be called by several threads at once. The prefix is in front; a text that
  // is null is empty.
  TextPair parse(const RawRecord& record) const;

 private:
  TextPair parse_json(const RawRecord& record) const;
  TextPair parse_fields(const RawRecord& record) const;

  RecordFormat format_;
  std::string path_, source_, target_, prefix_;
  std::size_t fields_ = 0, source_field_ = 0, target_field_ = 0;
  std::optional<std::size_t> quality_field_;
};

// The fields of one CSV record.
std::vector<std::string> csv_fields(const RawRecord& record, char separator,
                                    const std::string& path);

}  // namespace ballast::data
