#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/train/tiny_pair.h"
#include "train/recipes/distill_run.h"
#include "train/run/text_states.h"

namespace ballast::train::tiny {

// Heads of files are 128 wide.
inline wan::Config teacher_of_a_file() {
  wan::Config c = tiny_teacher();
  c.dim = 128;
  c.heads = 1;
  c.layers = 2;
  return c;
}

// A run by its flags: a tiny teacher whose prompts are encoded already.
class DistillFolder {
 public:
  DistillFolder() : teacher_(teacher_of_a_file()) {
    std::ofstream(file("student.json"))
        << R"({"hidden_size":16,"depth":2,"num_heads":2,"num_channels":3,"image_size":16,)"
        << R"("patch_size":4,"text_max_length":7,"text_encoder_output_dim":20})";
    const TextStates states(file("states"), "", 20);
    std::ofstream prompts(file("prompts.txt"));
    for (int i = 0; i < 5; ++i) {
      const std::string text = fmt::format("prompt {}", i);
      prompts << text << "\n";
      states.put(
          text,
          {.tokens = i + 1, .width = 20, .values = support::normal_values(text, 20 * (i + 1), 1)});
    }
  }
  std::string file(const std::string& name) const { return dir_.path(name); }
  DistillRun prepare(std::vector<std::string> more) const {
    RunTarget target;
    target.profile = TinyPair().request.profile;
    target.backend = {.device = Device::cpu, .threads = 2};
    return prepare(std::move(more), target);
  }
  DistillRun prepare(std::vector<std::string> more, const RunTarget& target) const {
    std::vector<std::string> flags = {"--teacher-path",
                                      teacher_.path(),
                                      "--student-config",
                                      file("student.json"),
                                      "--data_path",
                                      file("prompts.txt"),
                                      "--text_states",
                                      file("states"),
                                      "--num-steps",
                                      "4",
                                      "--lr",
                                      "0.01",
                                      "--ram",
                                      "2GB"};
    flags.insert(flags.end(), more.begin(), more.end());
    return prepare_distill(read_distill_config(flags), target);
  }
  // Runs until `stop_after` steps are done; the loss of every step.
  std::vector<double> run(std::vector<std::string> flags, std::int64_t stop_after) const {
    DistillRun r = prepare(std::move(flags));
    auto planned = std::get<fit::PlannedRun>(fit::find_plan(r.request));
    std::vector<double> losses;
    TrainOptions options;
    options.handle_signals = false;
    options.on_step = [&](const StepRecord& s) { losses.push_back(s.loss); };
    options.stop = [&] { return std::ssize(losses) == stop_after; };
    distill(std::move(r), std::move(planned), options);
    return losses;
  }

 private:
  test::TempDir dir_;
  support::TinyCheckpoint teacher_;
};

}  // namespace ballast::train::tiny
