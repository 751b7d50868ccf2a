#include "train/checkpoint/checkpoint_search.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "io/atomic_folder.h"
#include "memory/disk_file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_bad(const std::string& path, std::string_view what) {
  fail(ErrorCode::input, "{}: {}", path, what);
}

// Newest first. Temporary folders and those being deleted have other names.
std::map<std::int64_t, std::string, std::greater<>> checkpoints_of(const std::string& parent,
                                                                   const CheckpointNames& names) {
  std::map<std::int64_t, std::string, std::greater<>> found;
  std::error_code error;
  if (!fs::exists(parent, error)) return found;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto step = step_of_checkpoint(name, names))
      found.emplace(*step, parent + "/" + name);
  }
  if (error) fail_io(parent, "list the folder", error.value());
  return found;
}

}  // namespace

std::string checkpoint_name(std::int64_t step, const CheckpointNames& names) {
  return fmt::format("{}{:0{}}", names.prefix, step, names.digits);
}

std::string checkpoints_folder(const std::string& run, const CheckpointNames& names) {
  return names.folder.empty() ? run : run + "/" + names.folder;
}

std::optional<std::int64_t> step_of_checkpoint(std::string_view name,
                                               const CheckpointNames& names) {
  if (!name.starts_with(names.prefix)) return std::nullopt;
  const std::string_view digits = name.substr(names.prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || name != checkpoint_name(step, names)) return std::nullopt;
  return step;
}

TrainerState verify_checkpoint(const std::string& folder, Verify verify,
                               const CheckpointNames& names) {
  const CheckpointManifest manifest = read_manifest(folder);
  if (fs::path(folder).filename() != checkpoint_name(manifest.step, names)) {
    fail_bad(folder, fmt::format("the manifest is of step {}", manifest.step));
  }
  manifest.file(folder, kStateFile);
  const CheckpointManifest::File& trainer_file = manifest.file(folder, kTrainerFile);
  for (const CheckpointManifest::File& f : manifest.files) {
    CheckpointReader file(folder, f);
    if (verify == Verify::sizes) continue;
    file.pass(file.size());
    file.finish();
  }
  const std::string trainer_path = folder + "/" + kTrainerFile;
  const std::string trainer = read_checked_text(folder, trainer_file);
  TrainerState state =
      parse_trainer_state({.text = trainer, .path = trainer_path, .rule = "checkpoint.trainer"});
  if (state.step != manifest.step) {
    fail_bad(trainer_path,
             fmt::format("is of step {}, the manifest of step {}", state.step, manifest.step));
  }
  return state;
}

std::string skipped_note(const std::string& folder, const Error& e) {
  return fmt::format("checkpoint {} was skipped: {}", fs::path(folder).filename().string(),
                     e.what());
}

CheckpointSearch find_checkpoint(const std::string& run, const CheckpointNames& names,
                                 Verify verify, std::int64_t before) {
  CheckpointSearch search;
  for (const auto& [step, folder] : checkpoints_of(checkpoints_folder(run, names), names)) {
    if (step >= before) continue;
    try {
      search.found = {folder, verify_checkpoint(folder, verify, names)};
      return search;
    } catch (const Error& e) {  // a bad checkpoint is an answer here, not the end of the run
      search.notes.push_back(skipped_note(folder, e));
    }
  }
  return search;
}

FoundCheckpoint load_or_older(
    FoundCheckpoint found, const std::function<void(const FoundCheckpoint&)>& load,
    const std::function<std::optional<FoundCheckpoint>(std::int64_t)>& older) {
  for (;;) {
    try {
      load(found);
      return found;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input && e.code() != ErrorCode::io) throw;
      std::optional<FoundCheckpoint> next = older(found.state.step);
      if (!next) throw;
      log::warn("{}", skipped_note(found.folder, e));
      found = std::move(*next);
    }
  }
}

int remove_later_checkpoints(const std::string& run, std::int64_t step,
                             const CheckpointNames& names) {
  int removed = 0;
  for (const auto& [at, folder] : checkpoints_of(checkpoints_folder(run, names), names)) {
    if (at <= step) break;
    delete_folder(folder);
    ++removed;
  }
  return removed;
}

void rotate_checkpoints(const std::string& run, int keep, const CheckpointNames& names,
                        std::int64_t protected_step) {
  int whole = 0;
  for (const auto& [step, folder] : checkpoints_of(checkpoints_folder(run, names), names)) {
    if (step == protected_step) continue;
    if (whole >= std::max(1, keep)) {
      delete_folder(folder);
      continue;
    }
    try {
      verify_checkpoint(folder, Verify::sizes, names);
      ++whole;
    } catch (const Error&) {  // does not count
    }
  }
}

}  // namespace ballast::train
