#include "models/t5/inference_fit_job.h"

#include <algorithm>

#include "ops/kernels/token_quantum.h"

namespace ballast::t5 {
namespace {

// More slots would hold blocks that nobody waits for: one is read, one is copied, one is in use.
constexpr int kMaxSlots = 3;

MemoryPolicy through_slots(int slots, StreamSource stream_from, std::int64_t chunk = 0) {
  return {.name = fmt::format("stream{}{}", slots, chunk > 0 ? " chunked" : ""),
          .streaming = Streaming{.slots = slots, .stream_from = stream_from},
          .chunk_tokens = chunk};
}

MemoryPolicy resident_weights(std::int64_t chunk = 0) {
  return {.name = chunk > 0 ? "resident chunked" : "resident", .chunk_tokens = chunk};
}

MemoryPolicy one_matrix_at_a_time() {
  MemoryPolicy p = through_slots(1, StreamSource::disk, kTokenQuantum);
  p.name = "lowest-memory";
  p.streaming->matrices_ahead = 1;
  return p;
}

}  // namespace

std::int64_t InferenceFitJob::blocks() const { return config().layers + config().decoder_layers; }

std::vector<std::vector<MemoryPolicy>> InferenceFitJob::candidates(const fit::Switches&) const {
  std::vector<std::vector<MemoryPolicy>> lists(4);
  if (kept() == Kept::any || kept() == Kept::all) lists[0].push_back(resident_weights());
  if (kept() == Kept::all) return lists;
  if (kept() == Kept::none) {
    lists[0].push_back(through_slots(kMaxSlots, StreamSource::disk));
    lists[1].push_back(through_slots(kMaxSlots, StreamSource::disk, kTokenQuantum));
    lists[1].push_back(through_slots(2, StreamSource::disk));
    lists[2].push_back(through_slots(2, StreamSource::disk, kTokenQuantum));
    lists[2].push_back(through_slots(1, StreamSource::disk));
    lists[2].push_back(through_slots(1, StreamSource::disk, kTokenQuantum));
  } else {
    lists[1].push_back(resident_weights(kTokenQuantum));
    for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
      for (int slots = kMaxSlots; slots > 1; --slots) {
        lists[1].push_back(through_slots(slots, stream_from));
      }
      lists[2].push_back(through_slots(2, stream_from, kTokenQuantum));
      lists[2].push_back(through_slots(1, stream_from));
      lists[2].push_back(through_slots(1, stream_from, kTokenQuantum));
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
  fit::Recording r(policy, backend);
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
  if (encoder.passes.size() < 2 || variant_ == Variant::streams_all) return Kept::none;
  return variant_ == Variant::open       ? Kept::any
         : variant_ == Variant::resident ? Kept::all
                                         : Kept::those_that_fit;
}

std::vector<std::unique_ptr<fit::Job>> EncoderFitJob::variants() const {
  std::vector<std::unique_ptr<fit::Job>> all;
  const auto add = [&](Variant variant) {
    auto job = std::make_unique<EncoderFitJob>(*this);
    job->variant_ = variant;
    all.push_back(std::move(job));
  };
  if (encoder.passes.size() < 2) return all;
  if (variant_ == Variant::open) add(Variant::resident), add(Variant::streams);
  if (variant_ == Variant::streams) add(Variant::filled), add(Variant::streams_all);
  return all;
}

fit::Recording DecoderFitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
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
