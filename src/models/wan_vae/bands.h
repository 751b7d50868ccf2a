#pragma once

#include <cstdint>
#include <vector>

#include "plan/program_builder.h"

namespace ballast::wan_vae {

// Where frames have the most pixels both networks are local: outside the middle's attention a row
// of a result depends on rows nearby alone. So those stages may take an image in bands of rows,
// each with a halo of rows that are computed again and thrown away. Bands are counted in rows of
// the grid, twice as fine as latents: what the encoder's third stage reads, and what the decoder's
// second stage makes before it doubles rows and columns.
inline constexpr std::int64_t kGridPerLatent = 2;
// Rows of the network's input (encoder) or result (decoder) for one of the grid.
inline constexpr std::int64_t kRowsPerGrid = 4;
// Of the decoder: eight convolutions at four times the grid's rows, seven at twice: 8 / 4 + 7 / 2
// rows of the grid. Of the encoder, whose halving convolutions look down: five convolutions at four
// times its rows and four at twice, 13 rows of the input above and 16 below.
inline constexpr std::int64_t kDecoderHalo = 6, kEncoderHalo = 4;

struct Band {
  std::int64_t first = 0, rows = 0;  // computed
  std::int64_t keep = 0, kept = 0;   // of these the result counts
};

// At most so many bands of one size, the fewest rows that do; empty: one would be all.
std::vector<Band> cut_bands(std::int64_t rows, std::int64_t count, std::int64_t halo);
// What is computed more than once, as a part of the whole: 0.1.
double computed_twice(const std::vector<Band>& bands);

// Some rows of frame f of [T, H, W, C]: [1, rows, W, C].
Buffer rows_of_frame(ProgramBuilder& pb, Buffer frames, std::int64_t f, std::int64_t first,
                     std::int64_t rows);

}  // namespace ballast::wan_vae
