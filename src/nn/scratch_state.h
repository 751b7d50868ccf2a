#pragma once

#include <string_view>

#include "nn/staging_ring.h"
#include "plan/program_builder.h"

namespace ballast {

// The optimizer's state, wherever it waits between updates. On disk it has whole blocks to itself,
// so that it can be written past the page cache without touching a neighbour.
Buffer persistent_state(ProgramBuilder& pb, std::string_view name, const Shape& shape, DType dtype,
                        Tier tier);

// State on disk comes and goes through the buffers of the ring, in pieces of their size. What is
// stored is a buffer of persistent_state() or a cut of one that begins at a multiple of
// kDiskAlignment bytes and ends there or with the whole; the other one has as many bytes and lies
// on the device.
void read_scratch(ProgramBuilder& pb, StagingRing& ring, Buffer stored, Buffer to);
void write_scratch(ProgramBuilder& pb, StagingRing& ring, Buffer from, Buffer stored);
void zero_scratch(ProgramBuilder& pb, Buffer stored);

}  // namespace ballast
