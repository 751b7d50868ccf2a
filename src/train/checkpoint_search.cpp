#include "train/checkpoint_search.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "core/checksum.h"
#include "core/error.h"
#include "io/atomic_folder.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"
#include "train/checkpoint_manifest.h"
#include "train/training_checkpoint.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostText = 4 << 20;  // manifest.json and trainer.json have a few KB

[[noreturn]] void fail_bad(const std::string& path, std::string_view what) {
  fail(ErrorCode::input, fmt::format("{}: {}", path, what));
}

std::string read_text(const std::string& path) {
  return read_text_file(path, kMostText, "a checkpoint's JSON");
}

std::string checksum_of(const DiskFile& file) {
  constexpr std::uint64_t kPiece = 1 << 20;
  std::vector<std::byte> piece(std::min(kPiece, file.size()));
  Checksum sum;
  for (std::uint64_t done = 0; done < file.size();) {
    const auto part = std::span(piece).first(std::min(kPiece, file.size() - done));
    file.read(done, part);
    sum.add(part);
    done += part.size();
  }
  return sum.text();
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
  const std::string manifest_path = folder + "/" + kManifestFile;
  const std::string text = read_text(manifest_path);
  if (read_text(folder + "/" + kCommittedFile) != checksum_text(text)) {
    fail_bad(folder, fmt::format("{} is not the checksum of {}", kCommittedFile, kManifestFile));
  }
  const CheckpointManifest manifest =
      parse_manifest({.text = text, .path = manifest_path, .rule = "checkpoint.manifest"});
  if (fs::path(folder).filename() != checkpoint_name(manifest.step, names)) {
    fail_bad(folder, fmt::format("the manifest is of step {}", manifest.step));
  }
  for (const char* needed : {kStateFile, kTrainerFile}) {
    const auto files = std::count_if(manifest.files.begin(), manifest.files.end(),
                                     [&](const auto& f) { return f.name == needed; });
    if (files != 1) fail_bad(manifest_path, fmt::format("lists {} files {}", files, needed));
  }
  for (const CheckpointManifest::File& f : manifest.files) {
    const DiskFile file = DiskFile::open(folder + "/" + f.name, DiskMode::buffered);
    if (file.size() != f.bytes) {
      fail_bad(file.path(), fmt::format("has {} bytes, {} were written", file.size(), f.bytes));
    }
    if (verify == Verify::checksums && checksum_of(file) != f.checksum) {
      fail_bad(file.path(), "its bytes are not those that were written (checksum differs)");
    }
  }
  const std::string trainer_path = folder + "/" + kTrainerFile;
  const std::string trainer = read_text(trainer_path);
  TrainerState state =
      parse_trainer_state({.text = trainer, .path = trainer_path, .rule = "checkpoint.trainer"});
  if (state.step != manifest.step) {
    fail_bad(trainer_path,
             fmt::format("is of step {}, the manifest of step {}", state.step, manifest.step));
  }
  return state;
}

CheckpointSearch find_checkpoint(const std::string& run, const CheckpointNames& names) {
  CheckpointSearch search;
  for (const auto& [step, folder] : checkpoints_of(checkpoints_folder(run, names), names)) {
    try {
      search.found = {folder, verify_checkpoint(folder, Verify::checksums, names)};
      return search;
    } catch (const Error& e) {  // a bad checkpoint is an answer here, not the end of the run
      search.notes.push_back(
          fmt::format("checkpoint {} was skipped: {}", checkpoint_name(step, names), e.what()));
    }
  }
  return search;
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
