#include "models/wan_vae/bands.h"

#include <algorithm>

#include "core/error.h"

namespace ballast::wan_vae {

std::vector<Band> cut_bands(std::int64_t rows, std::int64_t count, std::int64_t halo) {
  check(rows > 0 && count > 0 && halo >= 0, "{} rows in {} bands", rows, count);
  // The first and the last have one halo, the others two.
  const std::int64_t size = (rows + 2 * halo * (count - 1) + count - 1) / count;
  const std::int64_t step = size - 2 * halo;
  if (size >= rows || step < 1) return {};
  std::vector<Band> bands;
  for (std::int64_t kept = 0; kept < rows;) {
    Band b;
    b.rows = size;
    b.first = std::min(std::ssize(bands) * step, rows - size);
    b.keep = kept;
    const std::int64_t end = b.first + size == rows ? rows : b.first + size - halo;
    b.kept = end - kept;
    kept = end;
    bands.push_back(b);
  }
  return bands;
}

double computed_twice(const std::vector<Band>& bands) {
  if (bands.empty()) return 0;
  std::int64_t all = 0;
  for (const Band& b : bands) all += b.rows;
  const Band& last = bands.back();
  return static_cast<double>(all) / static_cast<double>(last.first + last.rows) - 1;
}

Buffer rows_of_frame(ProgramBuilder& pb, Buffer frames, std::int64_t f, std::int64_t first,
                     std::int64_t rows) {
  const Shape s = pb.shape(frames);
  const Buffer lines = pb.reshape(pb.rows(frames, f, 1), {s[1], s[2], s[3]});
  return pb.reshape(pb.rows(lines, first, rows), {1, rows, s[2], s[3]});
}

}  // namespace ballast::wan_vae
