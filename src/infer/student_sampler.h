#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fit/planned_run.h"
#include "infer/require_plan.h"
#include "infer/video_codec.h"
#include "models/student/sample_fit_job.h"
#include "plan/runner.h"

namespace ballast::infer {

// Drawing one latent in so many steps. The largest tensor on its way from the file counts, too.
fit::Request student_request(student::Job job, std::int64_t steps, const Backend& backend,
                             const MachineProfile& profile, const Budget& budget);
// folder: of the student.
CommandPart student_part(fit::Request request, const std::string& folder);

// t of each step, from 999 to 0, and the share of signal behind it: 1 at the end.
struct StudentStep {
  double t = 0, alpha = 0, next_alpha = 1;
};
std::vector<StudentStep> student_steps(std::int64_t steps);

// Draws a latent with a student in memory, by WanDistiller's steps: with e the student's answer
//   x0 = (x - sqrt(1 - a) e) / sqrt(a),   x <- sqrt(a') x0 + sqrt(1 - a') e.
// Where the student has fewer channels than its teacher the steps are taken in the teacher's space,
// as it was trained: x begins with channel k of the noise in channels k, k + N, ..., the student
// reads the first N channels and its projected answer is e.
class StudentSampler {
 public:
  // The student's "student.predict" is run.
  StudentSampler(const student::Student& student, Runner& runner)
      : student_(student), runner_(runner) {}

  // text: [X], the mean of the prompt's states. The noise is that of (seed, number). Gives the
  // normalised latent [T, 1, grid, grid].
  std::vector<float> run(std::span<const float> text, std::int64_t steps, std::uint64_t seed,
                         std::int64_t number);

 private:
  const student::Student& student_;
  Runner& runner_;
};

// to = sum of the rows [n, to.size()], divided by `count`: what a student reads of a prompt.
void mean_rows(std::span<const float> rows, std::int64_t count, std::span<float> to);

// Fails with ErrorCode::input where the VAE of `path` is not one for the student's samples. folder:
// of the student, which may lack its projection; "": it is being taught.
void require_latents_of(const student::Config& c, const wan_vae::Config& vae,
                        const std::string& path, const std::string& folder);
// Tries what save_student_sample() will do with a sample of the student in `folder`, before there
// is one: whether its file can be written. Fails as that would. What the VAE needs is left to be
// planned; nothing: it is not asked for.
std::optional<CommandPart> check_student_sample(const student::Config& c, const std::string& folder,
                                                const std::string& vae,
                                                const VideoCodecOptions& options,
                                                const std::string& path);

// Decodes a normalised latent [channels, 1, grid, grid] with the VAE and writes it as PNG; a path
// that ends in .safetensors, or no VAE (""): the tensor `latent` under that ending.
// Returns the path.
std::string save_student_sample(std::span<const float> latent, const student::Config& c,
                                const std::string& vae, const VideoCodecOptions& options,
                                const std::string& path);

}  // namespace ballast::infer
