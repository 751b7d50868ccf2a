#include "models/t5/inference_fit_job.h"

#include <algorithm>

#include "ops/kernels/quantum.h"

namespace ballast::t5 {
namespace {

// More slots would hold blocks that nobody waits for: one is read, one is copied, one is in use.
constexpr int kMaxSlots = 3;

MemoryPolicy through_slots(int slots, WeightHome home, std::int64_t chunk = 0) {
  return {.name = fmt::format("stream{}{}", slots, chunk > 0 ? " chunked" : ""),
          .slots = slots,
          .home = home,
          .chunk_tokens = chunk};
}

MemoryPolicy resident_weights(std::int64_t chunk = 0) {
  return {.name = chunk > 0 ? "resident chunked" : "resident", .chunk_tokens = chunk};
}

MemoryPolicy one_matrix_at_a_time() {
  MemoryPolicy p = through_slots(1, WeightHome::disk, kTokenQuantum);
  p.name = "lowest-memory";
  p.parts = 1;
  return p;
}

}  // namespace

std::int64_t InferenceFitJob::blocks() const { return config().layers + config().decoder_layers; }

std::vector<std::vector<MemoryPolicy>> InferenceFitJob::candidates(const fit::Switches&) const {
  std::vector<std::vector<MemoryPolicy>> lists(4);
  if (kept() == Kept::any || kept() == Kept::all) lists[0].push_back(resident_weights());
  if (kept() == Kept::all) return lists;
  if (kept() == Kept::none) {
    lists[0].push_back(through_slots(kMaxSlots, WeightHome::disk));
    lists[1].push_back(through_slots(kMaxSlots, WeightHome::disk, kTokenQuantum));
    lists[1].push_back(through_slots(2, WeightHome::disk));
    lists[2].push_back(through_slots(2, WeightHome::disk, kTokenQuantum));
    lists[2].push_back(through_slots(1, WeightHome::disk));
    lists[2].push_back(through_slots(1, WeightHome::disk, kTokenQuantum));
  } else {
    lists[1].push_back(resident_weights(kTokenQuantum));
    for (const WeightHome home : {WeightHome::host, WeightHome::disk}) {
      for (int slots = kMaxSlots; slots > 1; --slots) {
        lists[1].push_back(through_slots(slots, home));
      }
      lists[2].push_back(through_slots(2, home, kTokenQuantum));
      lists[2].push_back(through_slots(1, home));
      lists[2].push_back(through_slots(1, home, kTokenQuantum));
    }
  }
  lists[3].push_back(one_matrix_at_a_time());
  return lists;
}

// A small model needs less than the ring through which weights stream.
std::vector<MemoryPolicy> InferenceFitJob::leanest() const {
  if (kept() == Kept::all) return {resident_weights()};
  return {one_matrix_at_a_time(), resident_weights(kTokenQuantum)};
}

fit::Recording EncoderFitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r;
  r.policy = policy;
  r.set.backend = backend;
  r.set.executable = false;
  EncoderJob job = encoder;
  job.policy = policy;
  job.source = {.read = [](std::size_t, std::size_t, const TensorView&) {},
                .expect = [](std::size_t) {}};
  const Encoder model(r.set, std::move(job), weights);
  std::vector<fit::StepProgram>& step = r.steps.emplace_back();
  step.push_back({"load", 1, false});
  for (const PassIo& pass : model.passes()) step.push_back({pass.program});
  return r;
}

InferenceFitJob::Kept EncoderFitJob::kept() const {
  if (encoder.passes.size() < 2 || way_ == Way::streams_all) return Kept::none;
  return way_ == Way::open ? Kept::any : way_ == Way::resident ? Kept::all : Kept::those_that_fit;
}

std::vector<std::unique_ptr<fit::Job>> EncoderFitJob::ways() const {
  std::vector<std::unique_ptr<fit::Job>> all;
  const auto add = [&](Way way) {
    auto job = std::make_unique<EncoderFitJob>(*this);
    job->way_ = way;
    all.push_back(std::move(job));
  };
  if (encoder.passes.size() < 2) return all;
  if (way_ == Way::open) add(Way::resident), add(Way::streams);
  if (way_ == Way::streams) add(Way::filled), add(Way::streams_all);
  return all;
}

fit::Recording DecoderFitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r;
  r.policy = policy;
  r.set.backend = backend;
  r.set.executable = false;
  DecoderJob job = decoder;
  job.policy = policy;
  const Decoder model(r.set, std::move(job), weights);
  const auto tokens = static_cast<double>(decoder.positions);
  for (const DecoderIo::Source& source : model.io().sources) {
    std::vector<fit::StepProgram>& step = r.steps.emplace_back();
    step.push_back({"load", 1, false});
    step.push_back({source.read});
    step.push_back({source.next, tokens});
    if (decoder.beams > 1) step.push_back({"reorder", tokens - 1});
  }
  return r;
}

std::unique_ptr<fit::Job> DecoderFitJob::heaviest() const {
  auto job = std::make_unique<DecoderFitJob>(*this);
  job->decoder.sources = {std::ranges::max(decoder.sources)};
  return job;
}

}  // namespace ballast::t5
