#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "report/append_file.h"

namespace ballast {

struct Scalar {
  std::string_view tag;  // "train/loss"
  float value = 0;
};

// An image as PNG, or as GIF.
struct EncodedImage {
  std::int64_t width = 0, height = 0;
  std::string bytes;
};

// The bytes of TensorBoard's event files: TFRecords of hand-written protobuf messages. Each
// function appends one whole record to `out`. wall_time is seconds since 1970; steps are not
// negative.
namespace event_record {

// The first record of every file.
void file_version(std::string& out, double wall_time);
void scalars(std::string& out, double wall_time, std::int64_t step, std::span<const Scalar> values);
// Markdown, shown under `name`.
void text(std::string& out, double wall_time, std::int64_t step, std::string_view name,
          std::string_view markdown);
void image(std::string& out, double wall_time, std::int64_t step, std::string_view tag,
           const EncodedImage& image);
// A run goes on at `step`: readers forget what earlier files say of this step and later ones.
void restart(std::string& out, double wall_time, std::int64_t step);

}  // namespace event_record

// An event file of one run:
//   FOLDER/events.out.tfevents.<unix seconds>.<host name>.<process id>.<counter>
// Every call appends its record with one write, so a killed run loses at most the record it was
// writing, and readers wait for the rest of such a record. A file is never written again: a resumed
// run opens a new one, whose name sorts behind those that are there. For one thread.
class EventFile {
 public:
  // resumed_at: the first step this file will tell of, for a resumed run.
  explicit EventFile(const std::string& folder, std::optional<std::int64_t> resumed_at = {});

  const std::string& path() const { return file_.path(); }

  void scalar(std::int64_t step, std::string_view tag, double value);
  void scalars(std::int64_t step, std::span<const Scalar> values);  // in one record
  void text(std::int64_t step, std::string_view name, std::string_view markdown);
  void image(std::int64_t step, std::string_view tag, const EncodedImage& image);
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
  std::string record_;  // kept, so that a step allocates nothing once it has grown
};

}  // namespace ballast
