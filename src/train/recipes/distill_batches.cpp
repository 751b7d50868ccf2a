#include "train/recipes/distill_batches.h"

#include <algorithm>

#include "core/to_size.h"

namespace ballast::train {

using student::Pair;
using student::Student;

DistillBatches::DistillBatches(const student::Pair& pair, Runner& runner, DistillBatchMaker maker,
                               TeacherInput input)
    : pair_(pair), runner_(runner), maker_(std::move(maker)), input_(input) {
  const student::PairJob& job = pair.job();
  const student::Config& c = job.student.config;
  const auto samples = to_size(job.student.batch);
  latents_.assign(samples, std::vector<float>(to_size(c.tokens() * c.num_channels)));
  texts_.assign(samples, std::vector<float>(to_size(c.text_dim)));
  for (std::size_t i = 0; i < samples; ++i) {
    const TensorView context = runner_.view(pair_.teacher().samples[i].context);
    asked_.push_back({.latent = latents_[i],
                      .context = {context.as<float>(), to_size(context.elements())},
                      .text = texts_[i]});
  }
}

Bytes DistillBatches::bytes(const student::PairJob& job) {
  const student::Config& c = job.student.config;
  return {
      static_cast<std::uint64_t>(job.student.batch * (c.tokens() * c.num_channels + c.text_dim)) *
      sizeof(float)};
}

void DistillBatches::load() {
  runner_.run("load");
  const auto& samples = pair_.teacher().samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::vector<std::int32_t> rows(to_size(runner_.view(samples[i].timestep_row).shape[0]),
                                         static_cast<std::int32_t>(i));
    runner_.write(samples[i].timestep_row, std::as_bytes(std::span(rows)));
  }
}

void DistillBatches::ask(std::int64_t number) {
  const wan::DitPassIo& io = pair_.teacher();
  const student::Config& c = pair_.job().student.config;
  maker_(number, asked_);
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    const DistillSample& k = asked_[i];
    runner_.view(io.timesteps).as<double>()[i] = k.t;
    float* z = runner_.view(io.samples[i].latent).as<float>();
    const bool zeros = input_ == TeacherInput::zeros && c.projects();
    for (std::int64_t n = 0; n < c.teacher_channels; ++n) {
      for (std::int64_t place = 0; place < c.tokens(); ++place) {
        *z++ = zeros ? 0 : k.latent[to_size(place * c.num_channels + n % c.num_channels)];
      }
    }
  }
  asked_number_ = number;
}

void DistillBatches::write_student_inputs() {
  const student::Config& c = pair_.job().student.config;
  const auto& samples = pair_.student().samples();
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    const student::SampleIo& s = samples[i];
    std::ranges::copy(asked_[i].latent, runner_.view(s.latent).as<float>());
    std::ranges::copy(asked_[i].text, runner_.view(s.text).as<float>());
    student::time_features(asked_[i].t, {runner_.view(s.time).as<float>(), to_size(c.hidden_size)});
    const float* answer = runner_.view(pair_.teacher().samples[i].output).as<float>();
    float* target = runner_.view(s.target).as<float>();
    for (std::int64_t place = 0; place < c.tokens(); ++place) {
      for (std::int64_t n = 0; n < c.teacher_channels; ++n) {
        *target++ = answer[n * c.tokens() + place];
      }
    }
  }
}

void DistillBatches::learn(std::int64_t number,
                           const std::function<void(const char* program)>& run) {
  if (!pair_.job().side_by_side) {
    ask(number);
    run(Pair::kTeacher);
    write_student_inputs();
    run(Student::kStep);
    return;
  }
  if (asked_number_ != number) {
    // The student's part of this run works on nothing; "student.zero" takes what it left.
    ask(number);
    run(Pair::kBoth);
    runner_.run(Student::kZero);
  }
  write_student_inputs();
  ask(number + 1);
  run(Pair::kBoth);
}

}  // namespace ballast::train
