#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fit/request.h"
#include "plan/bindings.h"
#include "plan/program_builder.h"

// A model that lives in tests/ alone: fit knows nothing of it but fit::Job.
namespace ballast::toy {

inline constexpr std::int64_t kWidth = 128;

// y = x w, of `rows` rows.
inline void multiply(const float* x, const float* w, float* y, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      float sum = 0;
      for (std::int64_t k = 0; k < kWidth; ++k) sum += x[r * kWidth + k] * w[k * kWidth + c];
      y[r * kWidth + c] = sum;
    }
  }
}

struct Io {
  Buffer x, y;
};

// Multiplies rows by one square matrix after another.
class FitJob final : public fit::Job {
 public:
  std::int64_t rows = 1;             // at once
  std::vector<WeightGroup> weights;  // a matrix each: the first, the blocks, the last

  // The programs "load" and "step".
  Io record_into(ProgramSet& set, const MemoryPolicy& policy) const {
    ProgramBuilder load(set, "load");
    BlockWeights block_weights(load, {weights}, policy, format());
    block_weights.load(load, 0);
    ProgramBuilder pb(set, "step");
    const Shape shape{rows, kWidth};
    const Io io = {.x = pb.persistent("x", shape, DType::f32, Role::input),
                   .y = pb.persistent("y", shape, DType::f32, Role::output)};
    block_weights.begin_program(pb);
    Buffer x = io.x;
    for (int g = 0; g < group_count(); ++g) {
      const auto scope = pb.scope(block_weights.group(g).name);
      const Buffer w = block_weights.use(pb, g)[0].data;
      const Buffer y = g + 1 < group_count() ? pb.temp("product", shape, DType::f32) : io.y;
      const double flops = 2.0 * static_cast<double>(rows * kWidth * kWidth);
      pb.emit("multiply",
              {.reads = {x, w}, .writes = {y}, .cost = {.work = Work::gemm, .flops = flops}},
              [x, w, y, n = rows](const Bindings& b) {
                multiply(b.in(x).as<float>(), b.in(w).as<float>(), b.out(y).as<float>(), n);
              });
      x = y;
    }
    block_weights.end_program(pb);
    return io;
  }

  std::unique_ptr<fit::Job> clone() const override { return std::make_unique<FitJob>(*this); }
  fit::Recording record(const MemoryPolicy& policy, const Backend& backend) const override {
    fit::Recording r(policy, backend);
    record_into(r.set, policy);
    r.steps = {{{"step"}}};
    return r;
  }

  std::span<const WeightGroup> groups() const override { return weights; }
  std::int64_t blocks() const override { return group_count() - 2; }
  std::int64_t depth() const override { return blocks(); }
  std::unique_ptr<fit::Job> with_depth(std::int64_t layers) const override {
    auto job = std::make_unique<FitJob>(*this);
    job->weights.erase(job->weights.begin() + 1 + layers, job->weights.end() - 1);
    return job;
  }

  std::vector<std::vector<MemoryPolicy>> candidates(const fit::Switches&) const override {
    return {{MemoryPolicy()}, {{.name = "stream2", .streaming = Streaming{.slots = 2}}}, leanest()};
  }
  std::vector<MemoryPolicy> leanest() const override {
    return {{.name = "stream1", .streaming = Streaming{.slots = 1}}};
  }
};

}  // namespace ballast::toy
