#include "models/t5/fit_job.h"

#include <algorithm>

#include "ops/kernels/token_quantum.h"

namespace ballast::t5 {
namespace {

std::int64_t rows_of(const BatchShape& b) {
  return b.micro_batches * b.samples * (b.source + b.target);
}

MemoryPolicy resident(Activations a) {
  return {.name = a == Activations::kept ? "resident" : "recompute", .activations = a};
}

MemoryPolicy streamed(int slots, Activations a) {
  return {.name = fmt::format("stream{}{}", slots, a == Activations::kept ? "" : " recompute"),
          .streaming = Streaming{.slots = slots, .stream_from = StreamSource::host},
          .activations = a};
}

// One slot, matrix by matrix, and everything else in host memory.
MemoryPolicy lowest() {
  MemoryPolicy p = streamed(1, Activations::recomputed);
  p.name = "lowest-memory";
  p.streaming->matrices_ahead = 1;
  p.offload = true;
  p.chunk_tokens = kTokenQuantum;
  p.heads_per_group = 4;
  return p;
}

}  // namespace

fit::Recording FitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  // Without a GPU what waits elsewhere waits in the same memory.
  if (backend.device == Device::cpu) r.policy.offload = false;
  Seq2SeqJob job = seq2seq;
  job.policy = r.policy;
  const Seq2Seq model(r.set, std::move(job), weights);
  for (const StepIo& io : model.io().steps) {
    std::vector<fit::StepProgram>& step = r.steps.emplace_back();
    r.add(step, "zero_gradients", 1, false);
    r.add(step, io.program, static_cast<double>(runs_per_step), true);
    for (const char* name : {"grad_norm", "update"}) r.add(step, name, 1, false);
  }
  return r;
}

fit::Trained FitJob::trained() const {
  return !seq2seq.trains ? fit::Trained::nothing
         : seq2seq.lora  ? fit::Trained::adapters
                         : fit::Trained::weights;
}

std::int64_t FitJob::blocks() const {
  return seq2seq.config.layers + seq2seq.config.decoder_layers;
}

// A layer of each side.
std::int64_t FitJob::depth() const {
  const Config& c = seq2seq.config;
  const bool alike = c.layers == c.decoder_layers && !c.bias_per_block &&
                     (!seq2seq.lora || seq2seq.lora->modules.empty());
  return alike ? c.layers : 0;
}

std::unique_ptr<fit::Job> FitJob::with_depth(std::int64_t layers) const {
  auto job = std::make_unique<FitJob>(*this);
  const Config& c = seq2seq.config;
  const auto cut = [&](Side side, std::int64_t all) {
    job->weights.erase(job->weights.begin() + block_group(c, side, layers),
                       job->weights.begin() + block_group(c, side, all));
  };
  cut(Side::decoder, c.decoder_layers);  // the last first: places before it stay
  cut(Side::encoder, c.layers);
  job->seq2seq.config.layers = job->seq2seq.config.decoder_layers = layers;
  return job;
}

std::size_t FitJob::kinds() const { return seq2seq.batches.size() + seq2seq.eval_batches.size(); }

std::unique_ptr<fit::Job> FitJob::heaviest() const {
  auto job = std::make_unique<FitJob>(*this);
  for (auto* batches : {&job->seq2seq.batches, &job->seq2seq.eval_batches}) {
    if (batches->empty()) continue;
    std::swap(batches->front(), *std::ranges::max_element(*batches, {}, rows_of));
    batches->resize(1);
  }
  return job;
}

std::vector<std::vector<MemoryPolicy>> FitJob::candidates(const fit::Switches& switches) const {
  std::vector<std::vector<MemoryPolicy>> lists(3);
  const bool keeps = switches.checkpointing != fit::Choice::on;
  const bool again = switches.checkpointing != fit::Choice::off;
  if (switches.offloading != fit::Choice::on) {
    if (keeps) lists[0].push_back(resident(Activations::kept));
    if (again) lists[1].push_back(resident(Activations::recomputed));
  }
  if (switches.offloading != fit::Choice::off) {
    if (keeps) lists[1].push_back(streamed(2, Activations::kept));
    if (again) {
      lists[1].push_back(streamed(2, Activations::recomputed));
      lists[2].push_back(streamed(1, Activations::recomputed));
      lists[2].push_back(lowest());
    }
  }
  return lists;
}

std::vector<MemoryPolicy> FitJob::leanest() const {
  return {lowest(), resident(Activations::recomputed)};
}

// Those of them that need least.
std::vector<MemoryPolicy> FitJob::switched(const fit::Switches& switches) const {
  std::vector<MemoryPolicy> all;
  const bool again = switches.checkpointing != fit::Choice::off;
  if (switches.offloading != fit::Choice::off) {
    all.push_back(again ? lowest() : streamed(2, Activations::kept));
  }
  if (switches.offloading != fit::Choice::on) {
    all.push_back(resident(again ? Activations::recomputed : Activations::kept));
  }
  return all;
}

bool FitJob::may_keep_blocks(const MemoryPolicy& p, const fit::Switches& switches) const {
  return !p.streams() && p.activations != Activations::kept &&
         switches.checkpointing != fit::Choice::on;
}

std::string weights_text(const Config& config, const MemoryPolicy& policy) {
  const std::int64_t blocks = config.layers + config.decoder_layers;
  if (!policy.streams()) return fmt::format("all {} blocks resident", blocks);
  const Streaming& s = *policy.streaming;
  const int groups = group_count(config);
  std::int64_t stay = 0, from_ram = 0;
  for (std::int64_t g = 1; g <= blocks; ++g) {
    const bool stays = evenly_chosen(g, groups, s.resident_groups);
    stay += stays;
    from_ram += !stays && comes_from_host(s, g, groups);
  }
  const std::int64_t from_disk = blocks - stay - from_ram;
  const std::string from = from_disk == 0 ? "RAM"
                           : from_ram == 0
                               ? "disk"
                               : fmt::format("RAM ({}) and disk ({})", from_ram, from_disk);
  return fmt::format("{} of {} blocks resident, {} streamed from {} through {} slot{}", stay,
                     blocks, blocks - stay, from, s.slots, s.slots == 1 ? "" : "s");
}

std::string describe(const Config& config, const MemoryPolicy& policy) {
  std::string text = weights_text(config, policy);
  text += policy.activations == Activations::kept ? "; keeps all activations"
          : policy.kept_blocks > 0
              ? fmt::format("; keeps activations of {} blocks, recomputes the others",
                            policy.kept_blocks)
              : "; recomputes activations";
  if (policy.offload) text += ", block inputs in RAM";
  return text;
}

}  // namespace ballast::t5
