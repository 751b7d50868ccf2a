#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "memory/budget.h"
#include "memory/disk_file.h"
#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/names.h"
#include "nn/block_weights.h"
#include "plan/process_lines.h"
#include "plan/profile.h"
#include "plan/refusal.h"

namespace ballast::infer {

struct TextModelOptions {
  Device device = Device::cpu;  // cuda: the GPU is opened when it is planned for or used
  // What the model may use; on the CPU host bounds both arenas. Fields that are 0 mean no limit.
  Budget budget = {};
  std::optional<MemoryPolicy> policy = {};  // nullopt: chosen by what fits
  int threads = 0;                          // of the CPU backend, 0: all that the process may use
  std::optional<DType> dtype = {};          // f32 or bf16; nullopt: f32 on the CPU, bf16 on a GPU
  WeightFormat format = WeightFormat::stored;
  VerifyWeights verify_weights = VerifyWeights::sampled;
  std::int64_t prompts_per_pass = 32;     // encoding: that share a visit of each block
  int disk_readers = kDiskReaders;        // reads in flight
  std::optional<t5::Config> config = {};  // nullopt: what the file and its config.json say
  std::optional<MachineProfile> profile =
      {};                                     // of the GPU that is planned for; nullopt: this one's
  std::vector<ProcessLine> other_lines = {};  // what the caller itself keeps in memory
};

// What a call will use.
struct TextModelPlan {
  MemoryPolicy policy;
  MemoryPlan memory;
  std::vector<ProcessLine> lines;  // what the arenas do not hold

  Bytes needed(Tier t) const;
};

// A checkpoint of the T5 family, opened: headers and places, no tensor.
struct TextModel {
  // path: a file, an index with its shards, or a folder. Fails with ErrorCode::input when it holds
  // no such model.
  TextModel(const std::string& path, TextModelOptions options);

  Backend backend() const;
  t5::Precision precision() const;

  // A recording's plan; `results`: bytes that the caller is given.
  TextModelPlan plan_of(const ProgramSet& set, MemoryPolicy policy, Bytes results) const;
  // What is missing; empty when it fits.
  std::vector<Shortage> shortages(const TextModelPlan& plan) const;
  // Three slots, two, one, then the same with token-local work in chunks; all weights resident
  // before them where every block is visited again and again. What the options say comes alone.
  std::vector<MemoryPolicy> candidates(bool visited_again) const;

  TextModelOptions options;
  Checkpoint checkpoint;
  t5::TensorMap names;
  t5::Config config;
};

// "does not fit: 4.000 GB more RAM needed (encoding 3 prompts)"; ends with ErrorCode::refused.
[[noreturn]] void fail_refused(const std::string& what, const Refusal& refusal, Device device,
                               const Budget& budget);

}  // namespace ballast::infer
