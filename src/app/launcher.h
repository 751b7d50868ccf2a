#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// The arguments of a command as people paste them, without what stands in front of the flags:
//   NCCL_P2P_DISABLE=1 deepspeed --num_gpus=1 train.py --deepspeed --config run.toml
//   accelerate launch --num_cpu_threads_per_process 1 src/musubi_tuner/wan_train_network.py --task
//   ... torchrun --nproc_per_node 2 train_distillation.py --teacher_path ...
// Assignments of the environment, launchers with their options and scripts are removed.
struct PastedLine {
  std::vector<std::string> arguments;
  std::vector<std::string> notes;  // one line per kind of thing that was ignored; no values
};
PastedLine strip_launcher(std::string_view command, std::vector<std::string> arguments);

// Whether a word begins a pasted line: an assignment, a launcher or a script. `next`: the word
// behind it, "" where there is none.
bool begins_pasted_line(std::string_view word, std::string_view next);

// Takes --ranks N or --ranks=N, wherever it stands, out of a command's arguments: so many processes
// of this host train together. nullopt: it is not there.
std::optional<int> take_ranks(std::vector<std::string>& arguments);

// What RANK, LOCAL_RANK and WORLD_SIZE of a launcher say about this process.
struct JobProcess {
  bool first = true;  // one process does the work; the others end at once
  std::string note;   // "": this process was started alone
};
JobProcess job_process();

}  // namespace ballast
