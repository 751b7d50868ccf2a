#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/tensor.h"
#include "io/atomic_folder.h"
#include "io/safetensors_writer.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/trainer_state.h"

namespace ballast::train {

// What a run needs to go on as if it had never stopped:
//   <run>/checkpoints/step-00000123/
//     state.safetensors   trained weights, optimizer state, averages
//     trainer.json        TrainerState
//     manifest.json       sizes and checksums of these two
//     COMMITTED           checksum of manifest.json, written last
//   <run>/checkpoints/latest   the name of the newest folder, for people and scripts
// All of it is written to a temporary folder, forced to disk and then renamed: whenever the process
// or the machine dies, a folder of that name is whole. Who saves or rotates holds the run's lock
// (train/run/run_folder.h).

// A tensor to save. Its bytes are written from where they are.
struct SavedTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  ByteSource source;              // state that is not in host memory comes in pieces
  std::string file = kStateFile;  // of the checkpoint; others hold what someone else reads as well

  static SavedTensor of(std::string name, const ConstTensorView& view);  // contiguous, on the host
};

// A tensor to restore.
struct LoadedTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::byte* data = nullptr;  // filled in place; nullptr: sink gets the bytes, piece by piece
  ByteSink sink;
  std::string file = kStateFile;

  static LoadedTensor of(std::string name, const TensorView& view);  // contiguous, on the host
};

// Space on disk that the next checkpoint takes.
Bytes checkpoint_bytes(const TrainerState& state, std::span<const SavedTensor> tensors);
// Fails (ErrorCode::io) when the disk of `folder` has less than that to give, and says how much is
// missing.
void check_checkpoint_space(const std::string& folder, Bytes needed);

// Saves and returns the folder. A failure (full disk, no permission) is an Error of ErrorCode::io,
// leaves earlier checkpoints as they are and nothing of its own. A checkpoint of the same step is
// replaced. Leftovers of killed processes are removed first.
//
// more: puts further files into the folder, which no manifest knows.
std::string save_checkpoint(const std::string& run, const TrainerState& state,
                            std::span<const SavedTensor> tensors, const CheckpointNames& names = {},
                            const std::function<void(const AtomicFolder&)>& more = nullptr);

// Removes all but the `keep` newest whole checkpoints (at least one). Broken ones that are newer
// than these stay, for whoever wants to know why, and so does that of protected_step, which does
// not count.
void rotate_checkpoints(const std::string& run, int keep, const CheckpointNames& names = {},
                        std::int64_t protected_step = -1);

enum class Verify {
  sizes,      // COMMITTED matches the manifest, trainer.json its checksum, every file its size:
              // load_checkpoint() verifies the others while it reads them
  checksums,  // and every byte: reads all of it
};

// Fails with the reason when the folder cannot be trusted; else what it says of the run.
TrainerState verify_checkpoint(const std::string& folder, Verify verify,
                               const CheckpointNames& names = {});

struct FoundCheckpoint {
  std::string folder;
  TrainerState state;
};
struct CheckpointSearch {
  std::optional<FoundCheckpoint> found;  // the newest good one
  std::vector<std::string> notes;        // a sentence per newer one that was skipped, and why
};
// A file or folder that vanishes or cannot be read makes one checkpoint bad, not the search. Bad
// ones and no good one: found is empty and notes are not, which is no reason to start over
// silently. before: of checkpoints before this step.
CheckpointSearch find_checkpoint(const std::string& run, const CheckpointNames& names = {},
                                 Verify verify = Verify::checksums,
                                 std::int64_t before = std::numeric_limits<std::int64_t>::max());
// "checkpoint step-00000012 was skipped: ..."
std::string skipped_note(const std::string& folder, const Error& why);
// Calls load(found). Where that cannot read the checkpoint (ErrorCode::input or io), warns and goes
// on with the one that older(step) returns, one of before that step; where there is none, fails as
// load() did. Returns the checkpoint that was loaded.
FoundCheckpoint load_or_older(
    FoundCheckpoint found, const std::function<void(const FoundCheckpoint&)>& load,
    const std::function<std::optional<FoundCheckpoint>(std::int64_t)>& older);

enum class Unasked {
  refuse,  // tensors of the checkpoint that nobody asked for are an error
  ignore,  // an optimizer that starts anew
};
// Compares names, shapes and types; an Error (ErrorCode::input) names the tensor and what differs.
void check_checkpoint(const std::string& folder, std::span<const LoadedTensor> tensors,
                      Unasked unasked = Unasked::refuse);
// Fills the tensors, all of them or, where check_checkpoint() fails, none. Every byte of their
// files is read once, into the tensors, and its checksum is that of the bytes in the tensors: where
// it is not the one that was written, an Error (ErrorCode::input) names the file and both, and what
// the tensors hold is not to be used.
void load_checkpoint(const std::string& folder, std::span<const LoadedTensor> tensors,
                     Unasked unasked = Unasked::refuse);

}  // namespace ballast::train
