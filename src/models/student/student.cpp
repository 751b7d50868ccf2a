#include "models/student/student.h"

#include <cmath>

#include "core/error.h"
#include "models/student/pass.h"
#include "ops/fill.h"

namespace ballast::student {

void time_features(double t, std::span<float> to) {
  const std::size_t half = to.size() / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const double angle =
        t * std::exp(-static_cast<double>(j) * std::log(1e4) / static_cast<double>(half - 1));
    to[j] = static_cast<float>(std::sin(angle));
    to[half + j] = static_cast<float>(std::cos(angle));
  }
}

Student::Student(ProgramSet& set, Job job) : job_(std::move(job)) {
  validate(job_.config);
  check(job_.batch > 0 && job_.runs_per_step > 0, "a step of {} x {} samples", job_.runs_per_step,
        job_.batch);
  {
    ProgramBuilder pb(set, kZero);
    declare(pb);
    if (job_.trains) {
      ops::fill(pb, loss_sum_, 0);
      for (const Parameter& p : parameters_) {
        ops::fill(pb, p.gradient, 0, job_.state_on_host ? Lane::host : Lane::compute);
      }
    }
  }
  const Pass::Parts parts = {
      .job = job_, .parameters = parameters_, .loss_sum = loss_sum_, .loss = loss_};
  if (job_.trains) {
    ProgramBuilder pb(set, kStep);
    Pass(parts, samples_, true).record(pb);
  }
  {
    ProgramBuilder pb(set, kPredict);
    Pass(parts, std::span(samples_).first(1), false).record(pb);
  }
  if (job_.trains) record_updates(set);
}

void Student::declare(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const Tier state = job_.state_on_host ? Tier::host : Tier::device;
  const auto scope = pb.scope("student");
  each_parameter(c, [&](int group, const std::string& name, const Shape& shape) {
    Parameter& p = parameters_.emplace_back();
    p.name = name;
    p.group = group;
    p.value = pb.persistent(name, shape, DType::f32, Role::weights);
    if (job_.trains) {
      p.gradient = pb.persistent(name + ".grad", shape, DType::f32, Role::gradient, state);
    }
  });
  const auto host = [&](const char* name, const Shape& shape, DType dtype, Role role) {
    return pb.persistent(name, shape, dtype, role, Tier::host);
  };
  for (std::int64_t i = 0; i < job_.batch; ++i) {
    SampleIo& s = samples_.emplace_back();
    s.latent = host("latent", {c.tokens(), c.num_channels}, DType::f32, Role::input);
    s.time = host("time", {1, c.hidden_size}, DType::f32, Role::input);
    s.text = host("text", {1, c.text_dim}, DType::f32, Role::input);
    if (job_.trains) {
      s.target = host("target", {c.tokens(), c.teacher_channels}, DType::f32, Role::input);
    }
  }
  samples_[0].output = host("output", {c.tokens(), c.teacher_channels}, DType::f32, Role::output);
  if (c.projects()) {
    samples_[0].own = host("own_output", {c.tokens(), c.num_channels}, DType::f32, Role::output);
  }
  if (!job_.trains) return;
  loss_ = host("loss", {1}, DType::f64, Role::output);
  loss_sum_ = pb.persistent("loss_sum", {1}, DType::f64, Role::output);
}

void Student::record_updates(ProgramSet& set) {
  Buffer factor;
  {
    ProgramBuilder init(set, "init_state");
    for (const Parameter& p : parameters_) {
      UpdatedTensor t;
      t.name = p.name;
      t.value = p.value;
      t.gradient = p.gradient;
      declare_states(init, job_.optimizer, t);
      trained_.push_back(std::move(t));
    }
    grad_norm_ = init.persistent("grad_norm", {1}, DType::f32, Role::output, Tier::host);
    factor = init.persistent("clip_factor", {1}, DType::f32, Role::output);
    record_initial_state(init, trained_);
  }
  {
    ProgramBuilder restored(set, "after_restore");
    record_restored(restored, trained_);
  }
  {
    ProgramBuilder norm(set, "grad_norm");
    record_gradient_norm(norm, trained_, job_.max_grad_norm, factor, grad_norm_);
  }
  {
    ProgramBuilder values(set, kValueNorm);
    record_value_norm(values, trained_, factor, grad_norm_);
  }
  ProgramBuilder pb(set, "update");
  record_update(pb, trained_, factor, job_.optimizer);
}

}  // namespace ballast::student
