#include <algorithm>

#include "app/commands/inspect_parts.h"
#include "core/error.h"
#include "core/non_finite.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "io/file_dtype.h"

namespace ballast {

std::vector<std::string> problems_of_values(const WeightFiles& checkpoint) {
  std::int64_t total = 0;
  for (const WeightTensor& t : checkpoint.tensors()) {
    total += static_cast<std::int64_t>(t.entry->bytes);
  }
  Progress progress("reading values", total, Progress::Unit::bytes);
  std::vector<std::byte> piece(4 << 20);
  std::vector<std::string> problems;
  for (const WeightTensor& t : checkpoint.tensors()) {
    const auto dtype = memory_dtype(t.entry->dtype);
    const Extent extent = checkpoint.extent(t);
    if (dtype && info(*dtype).floating) {
      for (std::uint64_t at = 0; at < extent.bytes; at += piece.size()) {
        const auto some = std::span(piece).first(
            to_size(std::min<std::uint64_t>(piece.size(), extent.bytes - at)));
        extent.file->read(extent.offset + at, some, PageCache::drop);
        const auto bad = first_non_finite(some, *dtype);
        if (!bad) continue;
        problems.push_back(fmt::format("{} holds NaN or infinity, first at element {}",
                                       printable(t.entry->name),
                                       at / size_of(*dtype) + static_cast<std::uint64_t>(*bad)));
        break;
      }
    }
    progress.add(static_cast<std::int64_t>(t.entry->bytes));
  }
  return problems;
}

}  // namespace ballast
