#pragma once

#include <span>
#include <vector>

#include "models/student/block.h"
#include "models/student/student.h"

namespace ballast::student {

// Records one program of the student: all samples share a visit of each block.
class Pass {
 public:
  struct Parts {
    const Job& job;
    std::span<const Parameter> parameters;
    Buffer loss_sum;  // [1] f64 on the device
    Buffer loss;      // [1] f64 on the host
  };
  // trains: forward, loss, backward; else forward, with outputs given to the host.
  Pass(const Parts& parts, std::span<const SampleIo> samples, bool trains);

  void record(ProgramBuilder& pb);

 private:
  struct SampleState {
    Buffer latent, time, text;     // on the device
    Buffer time_pre, time_hidden;  // [1, 4C]
    Buffer shift;                  // [1, C] f32: text plus time, which every block adds
    Buffer dshift;
    Buffer x, dx;  // [L, C]
    Buffer y;      // [L, N] f32
    std::vector<BlockSaved> saved;
  };
  struct Group {
    std::vector<Buffer> values, persistent, device;  // device: where backward adds to gradients
  };

  void embed(ProgramBuilder& pb);
  void head(ProgramBuilder& pb);
  void embed_backward(ProgramBuilder& pb);
  void begin_gradients(ProgramBuilder& pb, int group);
  void end_gradients(ProgramBuilder& pb, int group);
  EndParams<Buffer> ends(bool gradients) const;
  BlockParams<Buffer> block(std::int64_t b, bool gradients) const;
  Buffer image(ProgramBuilder& pb, Buffer rows) const;  // [1, h, w, channels]

  const Job& job_;
  const Config& config_;
  Parts parts_;
  std::span<const SampleIo> io_;
  bool trains_;
  Block layer_;
  std::vector<Group> groups_;
  std::vector<SampleState> samples_;
  Buffer ones_;                          // [L, C]: what the shift multiplies
  Buffer conv_in_rows_, conv_out_rows_;  // packed weights
};

}  // namespace ballast::student
