// Buffers that the host fills before a run of the transformer and reads after it.

#include <algorithm>

#include "models/wan/dit.h"
#include "models/wan/dit_pass.h"

namespace ballast::wan {
namespace {

// Sizes of the slots that all these runs share, by sample.
struct SlotSizes {
  std::vector<std::int64_t> cells, tokens;
  std::int64_t timestep_rows = 0;

  void include(const std::vector<DitPassIo>& runs) {
    for (const DitPassIo& run : runs) {
      const auto& latents = run.batch.latents;
      timestep_rows = std::max(timestep_rows, run.batch.timestep_rows);
      cells.resize(std::max(cells.size(), latents.size()), 0);
      tokens.resize(cells.size(), 0);
      for (std::size_t i = 0; i < latents.size(); ++i) {
        cells[i] = std::max(cells[i], latents[i].cells());
        tokens[i] = std::max(tokens[i], latents[i].tokens());
      }
    }
  }
};

Buffer on_host(ProgramBuilder& pb, const std::string& name, const Shape& shape, DType dtype,
               Role role) {
  return pb.persistent(name, shape, dtype, role, Tier::host);
}

}  // namespace

// One slot per sample, as large as the largest that will stand there; every kind of run sees its
// part of it in its own shape.
void Dit::declare_inputs(ProgramBuilder& pb) {
  SlotSizes all, trained;
  for (const auto* runs : {&io_.runs, &io_.eval_passes, &io_.predict_passes}) all.include(*runs);
  trained.include(io_.runs);
  const Buffer timesteps = on_host(pb, "timesteps", {all.timestep_rows}, DType::f64, Role::input);
  declare_losses(pb);
  std::vector<DitSampleIo> slots, next;
  for (std::size_t i = 0; i < all.cells.size(); ++i) {
    const auto scope = pb.scope(fmt::format("sample.{}", i));
    slots.push_back(declare_sample(pb, all.cells[i]));
    declare_step_values(pb, slots.back(), all.cells[i], all.tokens[i]);
  }
  // Only what is trained on is read ahead.
  for (std::size_t i = 0; job_.prefetch && i < trained.cells.size(); ++i) {
    const auto scope = pb.scope(fmt::format("next_sample.{}", i));
    next.push_back(declare_sample(pb, trained.cells[i]));
  }
  for (auto* runs : {&io_.runs, &io_.eval_passes, &io_.predict_passes}) {
    for (DitPassIo& run : *runs) {
      run.timesteps = pb.view(timesteps, 0, DType::f64, {run.batch.timestep_rows});
      for (std::size_t i = 0; i < run.batch.latents.size(); ++i) {
        run.samples.push_back(seen_as(pb, slots[i], run.batch.latents[i]));
        if (job_.prefetch && runs == &io_.runs)
          run.next.push_back(seen_as(pb, next[i], run.batch.latents[i]));
      }
    }
  }
  if (job_.distil) declare_teacher_passes(pb, slots);
}

void Dit::declare_losses(ProgramBuilder& pb) {
  if (trains() || !io_.eval_passes.empty()) {
    io_.loss = on_host(pb, "loss", {1}, DType::f64, Role::output);
  }
  for (int e = 0; accumulates_ && e < adapter_sets(); ++e) {
    // Experts add to one sum; a critic's is not its student's.
    const bool shared = e > 0 && e < experts_;
    loss_sums_.push_back(
        shared ? loss_sums_[0]
               : pb.persistent(set_program(job_, "loss_sum", e), {1}, DType::f64, Role::output));
  }
}

// What the dataset gives.
DitSampleIo Dit::declare_sample(ProgramBuilder& pb, std::int64_t cells) const {
  const Config& c = job_.config;
  DitSampleIo s;
  s.latent = on_host(pb, "latent", {c.out_dim * cells}, f32, Role::input);
  if (c.conditioning() > 0) {
    s.conditioning = on_host(pb, "conditioning", {c.conditioning() * cells}, f32, Role::input);
  }
  s.context = on_host(pb, "context", {c.text_len, c.text_dim}, f32, Role::input);
  if (job_.masks) s.mask = on_host(pb, "mask", {cells}, f32, Role::input);
  return s;
}

// What the host makes for each step, and what it gets back.
void Dit::declare_step_values(ProgramBuilder& pb, DitSampleIo& s, std::int64_t cells,
                              std::int64_t tokens) const {
  const Config& c = job_.config;
  const bool given = job_.noising == Noising::given;
  const bool prepared = job_.noising == Noising::prepared;
  const Shape latent = {c.out_dim * cells};
  const auto host = [&](const char* name, const Shape& shape, Role role) {
    return on_host(pb, name, shape, f32, role);
  };
  s.timestep_row = pb.persistent("timestep_row", {tokens}, DType::i32, Role::input);
  if (given || !io_.predict_passes.empty()) s.output = host("output", latent, Role::output);
  if ((given && trains()) || prepared) s.target = host("target", latent, Role::input);
  if (!given && !prepared) s.noise_fraction = host("noise_fraction", {1}, Role::input);
  if (!given) s.loss_weight = host("loss_weight", {1}, Role::input);
  if (job_.distil) {
    s.kept_input = host("kept_input", latent, Role::input);
    s.kept_answer = host("kept_answer", latent, Role::input);
    if (job_.distil->from_data) s.clean = host("clean", latent, Role::input);
  }
  if (job_.mode == Mode::full && job_.input_gradients) {
    s.dlatent = host("dlatent", latent, Role::output);
    s.dcontext = host("dcontext", {c.text_len, c.text_dim}, Role::output);
  }
}

// A guided teacher sees every sample twice. Its second answer has the latent and the timestep of
// the first: only the text and the place of the answer are others.
void Dit::declare_teacher_passes(ProgramBuilder& pb, const std::vector<DitSampleIo>& slots) {
  const Config& c = job_.config;
  std::vector<Buffer> answers;
  if (job_.distil->guided) {
    io_.empty_context =
        pb.persistent("empty_context", {c.text_len, c.text_dim}, f32, Role::input, Tier::host);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      answers.push_back(pb.persistent(fmt::format("unguided.{}", i), pb.shape(slots[i].latent), f32,
                                      Role::output, Tier::host));
    }
  }
  for (std::size_t r = 0; r < io_.teacher_passes.size(); ++r) {
    DitPassIo& run = io_.teacher_passes[r];
    run.timesteps = io_.runs[r].timesteps;
    run.samples = io_.runs[r].samples;
    for (std::size_t i = 0; i < answers.size() && i < io_.runs[r].samples.size(); ++i) {
      DitSampleIo twin = slots[i];
      twin.context = io_.empty_context;
      twin.output = answers[i];
      run.samples.push_back(seen_as(pb, twin, run.batch.latents[i]));
      run.batch.latents.push_back(run.batch.latents[i]);
    }
  }
}

// A slot's buffers in the shape of one sample.
DitSampleIo Dit::seen_as(ProgramBuilder& pb, DitSampleIo s, const LatentSize& z) const {
  const auto seen = [&](Buffer& slot, std::int64_t channels) {
    if (slot) slot = pb.view(slot, 0, f32, {channels, z.frames, z.height, z.width});
  };
  const Config& c = job_.config;
  seen(s.latent, c.out_dim);
  seen(s.conditioning, c.conditioning());
  seen(s.target, c.out_dim);
  seen(s.output, c.out_dim);
  seen(s.kept_input, c.out_dim);
  seen(s.kept_answer, c.out_dim);
  seen(s.clean, c.out_dim);
  seen(s.dlatent, c.out_dim);
  if (s.mask) s.mask = pb.view(s.mask, 0, f32, {z.frames, z.height, z.width});
  if (s.timestep_row) s.timestep_row = pb.view(s.timestep_row, 0, DType::i32, {z.tokens()});
  return s;
}

}  // namespace ballast::wan
