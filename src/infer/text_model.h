#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fit/request.h"
#include "io/weight_files.h"
#include "memory/budget.h"
#include "memory/disk_file.h"
#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/names.h"

namespace ballast::infer {

struct TextModelOptions {
  Device device = Device::cpu;  // cuda: the GPU is opened when it is planned for or used
  // What the model may use; on the CPU host bounds both arenas. Fields that are 0 mean no limit.
  Budget budget = {};
  std::optional<MemoryPolicy> policy = {};  // nullopt: the fastest predicted one that fits
  int threads = 0;                          // of the CPU backend, 0: all that the process may use
  std::optional<DType> dtype = {};          // f32 or bf16; nullopt: f32 on the CPU, bf16 on a GPU
  WeightFormat format = WeightFormat::stored;
  VerifyWeights verify_weights = VerifyWeights::sampled;
  std::int64_t prompts_per_pass = 32;     // encoding: that share a visit of each block
  int disk_readers = kDiskReaders;        // reads in flight
  std::optional<t5::Config> config = {};  // nullopt: what the file and its config.json say
  // Of the machine that is planned for; nullopt: estimates for this one.
  std::optional<MachineProfile> profile = {};
  std::vector<ProcessLine> other_lines = {};  // what the caller itself keeps in memory
};

// A checkpoint of the T5 family, opened: headers and places, no tensor.
struct TextModel {
  // path: a file, an index with its shards, or a folder. Fails with ErrorCode::input when it holds
  // no such model.
  TextModel(const std::string& path, TextModelOptions options);

  Backend backend() const;
  Precision precision() const;

  // lines: what a call keeps in memory besides the options' other lines.
  fit::Request request(fit::AnyJob job, std::vector<ProcessLine> lines) const;

  TextModelOptions options;
  WeightFiles checkpoint;
  t5::TensorMap names;
  t5::Config config;
};

}  // namespace ballast::infer
