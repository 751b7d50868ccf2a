#include "models/student/pair.h"

#include <optional>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::student {
namespace {

// How much of a program is done behind each of its instructions: 0 to 1.
std::vector<double> progress_of(const ProgramSet& set, const Program& program,
                                const MachineProfile& profile) {
  std::vector<double> done;
  double sum = 0;
  for (const Instruction& i : program.instructions) {
    sum += predicted_seconds(set, i, profile);
    done.push_back(sum);
  }
  for (double& d : done) d /= sum > 0 ? sum : 1;
  return done;
}

// What is recorded while it lives is work of the processors in host memory, in a set whose backend
// is a GPU: as a CPU backend records it, in the other arena and on the host's lane.
class OnProcessors {
 public:
  explicit OnProcessors(ProgramSet& set)
      : set_(set),
        backend_(set.backend),
        buffers_(set.buffers.size()),
        programs_(set.programs.size()) {
    set_.backend = {.device = Device::cpu, .threads = backend_.threads};
  }
  ~OnProcessors() {
    set_.backend = backend_;
    for (std::size_t b = buffers_; b < set_.buffers.size(); ++b) {
      if (set_.buffers[b].tier == Tier::device) set_.buffers[b].tier = Tier::host;
    }
    for (std::size_t p = programs_; p < set_.programs.size(); ++p) {
      for (Instruction& i : set_.programs[p].instructions) {
        if (i.lane == Lane::compute) i.lane = Lane::host;
      }
    }
  }
  OnProcessors(const OnProcessors&) = delete;
  OnProcessors& operator=(const OnProcessors&) = delete;

 private:
  ProgramSet& set_;
  Backend backend_;
  std::size_t buffers_, programs_;
};

}  // namespace

void interleave(ProgramSet& set, std::string_view first, std::string_view second, std::string name,
                const MachineProfile& profile) {
  const int from = set.program_index(first), to = set.program_index(second);
  check(from != to, "{} is to be interleaved with itself", first);
  Program& a = set.programs[to_size(from)];
  Program& b = set.programs[to_size(to)];
  const std::vector<double> a_done = progress_of(set, a, profile);
  const std::vector<double> b_done = progress_of(set, b, profile);
  Program both = {.name = std::move(name), .instructions = {}};
  both.instructions.reserve(a_done.size() + b_done.size());
  std::size_t i = 0, j = 0;
  while (i < a_done.size() || j < b_done.size()) {
    const bool take_a = j == b_done.size() || (i < a_done.size() && a_done[i] <= b_done[j]);
    both.instructions.push_back(std::move(take_a ? a.instructions[i++] : b.instructions[j++]));
  }
  b = std::move(both);
  for (BufferSpec& s : set.buffers) {
    if (s.program == from) s.program = to;
    if (s.program > from) --s.program;
  }
  set.programs.erase(set.programs.begin() + from);
}

Pair::Pair(ProgramSet& set, PairJob job, std::vector<WeightGroup> teacher,
           const MachineProfile& profile)
    : job_(std::move(job)) {
  const Config& c = job_.student.config;
  if (job_.teacher.out_dim != c.teacher_channels || job_.teacher.conditioning() != 0) {
    fail(ErrorCode::input,
         fmt::format("{} reads {} channels and answers with {}; a teacher of this student reads "
                     "and answers with {}",
                     job_.teacher.name, job_.teacher.in_dim, job_.teacher.out_dim,
                     c.teacher_channels),
         {{"use a text-to-video transformer", "Wan2.2-T2V-A14B is what the student is made for"}});
  }
  if (job_.teacher.text_dim != c.text_dim) {
    fail(ErrorCode::input,
         "the teacher's text states have {} numbers, the student's "
         "text_encoder_output_dim is {}",
         job_.teacher.text_dim, c.text_dim);
  }
  wan::DitJob dit;
  dit.config = job_.teacher;
  dit.mode = wan::Mode::infer;
  dit.policy = job_.teacher_policy;
  dit.precision = job_.teacher_precision;
  dit.format = job_.teacher_format;
  const auto samples = to_size(job_.student.batch);
  dit.batches = {
      {.latents = std::vector(samples, teacher_latent(c)), .timestep_rows = job_.student.batch}};
  {
    std::optional<OnProcessors> processors;
    if (job_.teacher_on_processors && set.backend.device == Device::cuda) processors.emplace(set);
    dit_ = std::make_unique<wan::Dit>(set, std::move(dit), std::move(teacher));
  }
  student_ = std::make_unique<Student>(set, job_.student);
  if (job_.side_by_side) interleave(set, kTeacher, Student::kStep, kBoth, profile);
}

}  // namespace ballast::student
