#include "models/wan/dit.h"

#include <algorithm>
#include <iterator>

#include "core/to_size.h"
#include "models/wan/appended_adapters.h"
#include "models/wan/dit_pass.h"
#include "models/wan/dit_update.h"
#include "ops/fill.h"

namespace ballast::wan {

std::string_view name_of(Mode m) {
  constexpr std::string_view kNames[] = {"infer", "lora", "full"};
  return kNames[to_size(m)];
}

std::string expert_program(std::string_view name, int expert) {
  return expert == 0 ? std::string(name) : fmt::format("{}.high_noise", name);
}

std::string set_program(const DitJob& job, std::string_view name, int set) {
  return job.distil && set == 1 ? fmt::format("{}.critic", name) : expert_program(name, set);
}

std::string set_prefix(const DitJob& job, int set) {
  return set == 0 ? "" : job.distil ? "critic." : "high_noise.";
}

std::string run_program(std::string_view name, std::size_t r) {
  return r == 0 ? std::string(name) : fmt::format("{}.{}", name, r);
}

std::int64_t block_of(const AdapterIo& a) {
  return std::stoll(a.name.substr(7));  // behind "blocks."
}

std::int64_t row_unit(const DitJob& job) {
  constexpr std::int64_t kWide = 256;  // of narrower matrices the GPU makes quanta side by side
  return job.mode == Mode::full && job.config.dim > kWide ? kWideQuantum : kTokenQuantum;
}

namespace {

void check_chunks(const DitJob& job) {
  const std::int64_t chunk = job.policy.chunk_tokens, unit = row_unit(job);
  const auto is_cut = [&](const LatentSize& z) { return z.tokens() > chunk; };
  const bool cuts = chunk > 0 && std::ranges::any_of(job.batches, [&](const Batch& b) {
                      return std::ranges::any_of(b.latents, is_cut);
                    });
  if (!cuts || chunk % unit == 0) return;
  fail(ErrorCode::usage,
       fmt::format("chunks of {} tokens: where weights are trained, work is cut at multiples of {}",
                   chunk, unit),
       {{fmt::format("--chunk {}", unit), "the smallest chunks"}});
}

}  // namespace

void use_fp8_products(DitJob& job, const Backend& backend) {
  const Advice without = {"leave out --fp8-matmul", "products are bf16"};
  if (job.mode == Mode::full) {
    fail(ErrorCode::usage, "fp8 products need frozen weights; --mode full trains them",
         {without, {"--mode lora", "trains adapters beside frozen weights"}});
  }
  if (job.format == WeightFormat::f8_e5m2 || job.format == WeightFormat::int8_rows) {
    fail(ErrorCode::usage,
         fmt::format("fp8 products take float8_e4m3 weights, not {}", name_of(job.format)),
         {without, {"--weights fp8_rows", "float8_e4m3 with a scale per row"}});
  }
  constexpr int kFirstWithUnits = 89;
  if (backend.device == Device::cuda && backend.sm < kFirstWithUnits) {
    fail(ErrorCode::device,
         fmt::format("this GPU has compute capability {}.{}; fp8 products need 8.9 (RTX 40 series, "
                     "L4, H100) or later",
                     backend.sm / 10, backend.sm % 10),
         {without,
          {"--weights fp8", "fp8 weights take the same memory and are multiplied in bf16"}});
  }
  job.fp8_matmul = true;
  if (job.format != WeightFormat::f8_e4m3) job.format = WeightFormat::f8_e4m3_rows;
}

std::string weights_text(const DitJob& job) {
  return fmt::format("{}{}", name_of(job.format), job.fp8_matmul ? ", fp8 products" : "");
}

Dit::Dit(ProgramSet& set, DitJob job, std::vector<std::vector<WeightGroup>> experts, Taps* taps)
    : set_(set), job_(std::move(job)), experts_(static_cast<int>(experts.size())) {
  validate(job_.config);
  if (job_.fp8_matmul) use_fp8_products(job_, set_.backend);
  for (const auto& groups : experts) {
    check(static_cast<int>(groups.size()) == group_count(job_.config),
          "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  }
  check(experts_ == 1 || job_.mode != Mode::full, "two experts have one set of weight buffers");
  check(!job_.distil || (experts_ == 1 && job_.mode == Mode::lora &&
                         job_.noising == Noising::prepared && !job_.lora.drops()),
        "a critic and a student are two adapters of one model, on inputs that the host prepares");
  check(!job_.batches.empty(), "there is at least one kind of step");
  check_chunks(job_);
  // Weights that change cannot be streamed from the user's file.
  if (auto& s = job_.policy.streaming; s && job_.mode == Mode::full)
    s->stream_from = StreamSource::host;
  check(!job_.parallel.has_columns() || job_.noising != Noising::given,
        "a step with columns has weights of its samples");
  if (job_.parallel.ranks > 1) {
    check(set_.groups.empty(), "one model of a set is trained by several ranks");
    set_.groups.push_back({.name = "data parallel",
                           .size = job_.parallel.ranks,
                           .mine = job_.parallel.rank,
                           .one_host = job_.parallel.one_host});
  }
  cut_batches();
  {
    ProgramBuilder load(set_, job_.prefix + "load");
    const AppendedAdapters appended(job_);
    weights_.emplace(load, std::move(experts), job_.policy, job_.format,
                     [&](int group, std::size_t tensor, DType dtype) {
                       return appended.padding(group, tensor, dtype);
                     });
    declare_inputs(load);
    declare_adapters(load);
    declare_gradients(load);
    declare_column_sums(load);
    if (job_.mode != Mode::full) weights_->keep_first_in_slots();
    weights_->load(load, 0);
  }
  if (experts_ > 1) {
    ProgramBuilder load(set_, job_.prefix + expert_program("load", 1));
    weights_->load(load, 1);
  }
  for (int e = 0; e < adapter_sets(); ++e) {
    if (e < experts_) weights_->select(e);
    const auto of = to_size(e);
    const DitPass::Parts parts = {.job = job_,
                                  .weights = *weights_,
                                  .adapters = io_.adapters,
                                  .gradients = gradients_[of],
                                  .loss_sum = accumulates_ ? loss_sums_[of] : Buffer(),
                                  .loss = io_.loss};
    const auto record = [&](std::vector<DitPassIo>& runs, const char* name, PassKind kind) {
      for (std::size_t r = 0; r < runs.size(); ++r) {
        const bool teacher = &runs == &io_.teacher_passes;
        runs[r].programs.push_back(job_.prefix + set_program(job_, run_program(name, r), e));
        ProgramBuilder pb(set_, runs[r].programs.back());
        DitPass(parts, runs[r], teacher ? DitPass::kNoAdapters : e, kind, taps).record(pb);
      }
    };
    record(io_.runs, "step", trains() ? PassKind::train : PassKind::predict);
    record(io_.eval_passes, "eval", PassKind::score);
    record(io_.predict_passes, "predict", PassKind::predict);
    if (e == 0) record(io_.teacher_passes, "teacher", PassKind::predict);
  }
  if (accumulates_) record_zero_gradients();
  if (sums_) sums_->record(set_);
  if (trains() && job_.record_update) record_update(set_, job_, *weights_, adapter_sets(), io_);
}

// A step whose samples do not all pass at once is cut into parts of equal size and a rest; every
// distinct size is one kind of run.
void Dit::cut_batches() {
  const auto kind_of = [&](const Batch& batch) {
    for (std::size_t r = 0; r < io_.runs.size(); ++r) {
      if (io_.runs[r].batch == batch) return r;
    }
    io_.runs.push_back(
        {.batch = batch, .timesteps = {}, .samples = {}, .next = {}, .programs = {}});
    return io_.runs.size() - 1;
  };
  const std::int64_t at_once = job_.policy.samples_per_pass;
  for (const Batch& batch : job_.batches) {
    check(!batch.latents.empty(), "a batch has at least one sample");
    std::vector<StepPass>& passes = passes_.emplace_back();
    const std::int64_t all = std::ssize(batch.latents);
    const ReductionColumns& columns = job_.parallel.columns;
    for (std::int64_t c = 0; c < columns.columns; ++c) {
      const ColumnRange samples = columns.samples_of({c, 1}, all);
      const std::int64_t most = at_once == 0 || job_.noising == Noising::given ? all : at_once;
      for (std::int64_t first = samples.first; first < samples.end(); first += most) {
        const std::int64_t count = std::min(most, samples.end() - first);
        if (count == all) {  // as the batch has it
          passes.push_back({.run = kind_of(batch), .first = first, .column = c});
          continue;
        }
        const auto begin = batch.latents.begin() + first;
        const Batch part = {.latents = {begin, begin + count}, .timestep_rows = count};
        passes.push_back({.run = kind_of(part), .first = first, .column = c});
      }
    }
    accumulates_ = accumulates_ || passes.size() > 1;
  }
  accumulates_ = accumulates_ || job_.parallel.has_columns();
  const auto add = [](std::vector<DitPassIo>& runs, const std::vector<Batch>& batches) {
    for (const Batch& batch : batches) {
      runs.push_back({.batch = batch, .timesteps = {}, .samples = {}, .next = {}, .programs = {}});
    }
  };
  add(io_.eval_passes, job_.eval_batches);
  if (job_.distil) {
    for (const DitPassIo& run : io_.runs) {
      add(io_.predict_passes, {run.batch});
      add(io_.teacher_passes, {run.batch});
    }
  }
  add(io_.predict_passes, job_.predict_batches);
}

// The factors of one block lie in one buffer, so that one instruction reaches all of them, and
// those of layers with a common input side by side: first every A, then every B.
void Dit::declare_adapters(ProgramBuilder& pb) {
  if (job_.mode != Mode::lora && !job_.adapters_in_inference) return;
  check(job_.lora.targets.empty() && job_.lora.modules.empty(),
        "modules of Wan without an adapter are excluded by their names");
  const std::vector<AdapterTarget> targets = adapter_targets(job_.config);
  for (int e = 0; e < adapter_sets(); ++e) {
    for (std::int64_t block = 0; block < job_.config.layers; ++block) {
      std::vector<AdapterIo> adapters;
      std::vector<Shape> a, b;
      for (const AdapterTarget& t : targets) {
        const std::string module = fmt::format("blocks.{}.{}", block, t.name);
        if (std::ranges::find(job_.lora.excluded, module) != job_.lora.excluded.end()) continue;
        adapters.push_back({.name = module, .expert = e, .a = {}, .b = {}, .da = {}, .db = {}});
        a.push_back({job_.lora.rank, t.weight[1]});
        b.push_back({t.weight[0], job_.lora.rank});
      }
      if (adapters.empty()) continue;
      std::int64_t elements = 0;
      for (const Shape& s : a) elements += s.elements();
      for (const Shape& s : b) elements += s.elements();
      const std::string name = fmt::format("{}blocks.{}.lora", set_prefix(job_, e), block);
      const auto cut = [&](Buffer all, Buffer AdapterIo::*to_a, Buffer AdapterIo::*to_b) {
        std::uint64_t at = 0;
        const auto next = [&](const Shape& s) {
          const Buffer v = pb.view(all, at, pb.dtype(all), s);
          at += static_cast<std::uint64_t>(s.elements()) * size_of(pb.dtype(all));
          return v;
        };
        for (std::size_t i = 0; i < a.size(); ++i) adapters[i].*to_a = next(a[i]);
        for (std::size_t i = 0; i < b.size(); ++i) adapters[i].*to_b = next(b[i]);
      };
      cut(pb.persistent(name, {elements}, job_.lora.dtype, Role::adapter), &AdapterIo::a,
          &AdapterIo::b);
      if (trains()) {
        const Tier tier = job_.policy.state_on_host ? Tier::host : Tier::device;
        cut(pb.persistent(name + ".grad", {elements}, f32, Role::gradient, tier), &AdapterIo::da,
            &AdapterIo::db);
      }
      std::ranges::move(adapters, std::back_inserter(io_.adapters));
    }
  }
}

// Gradients of a group of weights stay on the device with them, or go to the host with them.
void Dit::declare_gradients(ProgramBuilder& pb) {
  gradients_.resize(to_size(adapter_sets()));
  for (auto& groups : gradients_) {
    groups.resize(to_size(group_count(job_.config)));
  }
  if (job_.mode == Mode::lora) {
    for (const AdapterIo& a : io_.adapters) {
      auto& persistent =
          gradients_[to_size(a.expert)][to_size(block_group(block_of(a)))].persistent;
      const Buffer all = set_.spec(a.da).root;  // of the block
      if (persistent.empty()) persistent.push_back(all);
    }
  }
  if (job_.mode != Mode::full) return;
  for (int g = 0; g < weights_->groups(); ++g) {
    const Tier tier = weights_->resident(g) ? Tier::device : Tier::host;
    for (const StoredTensor& t : weights_->group(g).tensors) {
      const Buffer b = pb.persistent(t.name + ".grad", t.data.shape, f32, Role::gradient, tier);
      gradients_[0][to_size(g)].persistent.push_back(b);
      io_.gradients.push_back({t.name, b});
    }
  }
}

std::vector<StepPass> Dit::passes(std::size_t b, int rank) const {
  const DataParallel& p = job_.parallel;
  const ColumnRange own = p.columns.of_rank(rank, p.ranks);
  std::vector<StepPass> passes;
  std::ranges::copy_if(passes_[b], std::back_inserter(passes), [&](const StepPass& pass) {
    return pass.column >= own.first && pass.column < own.end();
  });
  return passes;
}

void Dit::declare_column_sums(ProgramBuilder& pb) {
  if (!job_.parallel.has_columns()) return;
  std::vector<std::vector<Buffer>> gradients;
  for (const auto& groups : gradients_) {
    std::vector<Buffer>& all = gradients.emplace_back();
    for (const GroupGradients& g : groups) std::ranges::copy(g.persistent, std::back_inserter(all));
  }
  std::vector<std::int64_t> samples;
  for (const Batch& b : job_.batches) samples.push_back(std::ssize(b.latents));
  const auto name = [prefix = job_.prefix, critic = job_.distil.has_value()](std::string_view of,
                                                                             int set) {
    if (set == 0) return prefix + std::string(of);
    return prefix + (critic ? fmt::format("{}.critic", of) : expert_program(of, 1));
  };
  sums_.emplace(
      pb, job_.parallel,
      ColumnSums::Sets{
          .gradients = std::move(gradients), .together = job_.distil.has_value(), .name = name},
      samples);
}

void Dit::record_zero_gradients() {
  ProgramBuilder pb(set_, "zero_gradients");
  for (std::size_t e = 0; e < loss_sums_.size(); ++e) {
    if (e == 0 || !(loss_sums_[e] == loss_sums_[0])) ops::fill(pb, loss_sums_[e], 0);
  }
  for (const auto& groups : gradients_) {
    for (const GroupGradients& g : groups) {
      for (const Buffer b : g.persistent) {
        ops::fill(pb, b, 0, pb.tier(b) == Tier::host ? Lane::host : Lane::compute);
      }
    }
  }
}

}  // namespace ballast::wan
