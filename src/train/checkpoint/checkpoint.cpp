#include "train/checkpoint/checkpoint.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/hashed_file.h"
#include "io/leftovers.h"
#include "io/limits.h"
#include "io/safetensors.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace ballast::train {
namespace {

// By name of the file. The state is there in every checkpoint.
using Writers = std::map<std::string, SafetensorsWriter>;
Writers writers_of(std::span<const SavedTensor> tensors) {
  Writers all;
  all.try_emplace(kStateFile);
  for (const SavedTensor& t : tensors) {
    const auto [at, fresh] =
        all.try_emplace(t.file, SafetensorsWriter::Options{.metadata = {{"format", "pt"}}});
    at->second.add(t.name, t.dtype, t.shape, t.source);
  }
  return all;
}

// A file takes whole blocks; three more of them for the folder and what the file system notes
// beside them.
std::uint64_t blocks_of(std::span<const std::uint64_t> files) {
  constexpr std::uint64_t kBlock = 4096;
  std::uint64_t bytes = 3 * kBlock;
  for (const std::uint64_t f : files) bytes += (f + kBlock - 1) / kBlock * kBlock;
  return bytes;
}

constexpr std::uint64_t kManifestBytes = 4096;  // more than it ever has

Bytes bytes_of(const Writers& writers, const std::string& state) {
  std::vector<std::uint64_t> files = {state.size(), kManifestBytes, 16};
  for (const auto& [name, writer] : writers) files.push_back(writer.file_bytes());
  return {blocks_of(files)};
}

void check_host(std::string_view name, bool contiguous, Device device) {
  check(contiguous, "checkpoint: tensor {} is not contiguous", name);
  check(device == Device::cpu, "checkpoint: tensor {} is not in RAM", name);
}

using Reads = std::vector<std::pair<const SafetensorsEntry*, const LoadedTensor*>>;

Reads match(const SafetensorsHeader& file, std::span<const LoadedTensor* const> tensors,
            Unasked unasked) {
  const auto differs = [&](std::string_view name, const std::string& what) {
    fail(ErrorCode::input, fmt::format("{}: tensor {} {}", file.path(), printable(name), what),
         {{"resume with the config this run was started with",
           "model, adapter rank and optimizer must be the same"}});
  };
  Reads reads;
  reads.reserve(tensors.size());
  std::vector<bool> asked(file.entries().size());
  for (const LoadedTensor* tensor : tensors) {
    const LoadedTensor& t = *tensor;
    const SafetensorsEntry* entry = file.find(t.name);
    if (entry == nullptr) differs(t.name, "is not there");
    if (entry->dtype != file_dtype(t.dtype)) {
      differs(t.name, fmt::format("is {}, expected {}", entry->dtype, file_dtype(t.dtype)));
    }
    if (!(entry->shape == t.shape)) {
      differs(t.name, fmt::format("is {}, expected {}", entry->shape, t.shape));
    }
    const auto index = to_size(entry - file.entries().data());
    check(!asked[index], "tensor {} was asked for twice", t.name);
    asked[index] = true;
    reads.emplace_back(entry, &t);
  }
  const auto unknown = std::find(asked.begin(), asked.end(), false);
  if (unasked == Unasked::refuse && unknown != asked.end()) {
    differs(file.entries()[to_size(unknown - asked.begin())].name,
            "is there, but this run has no such tensor");
  }
  // As they lie on disk.
  std::sort(reads.begin(), reads.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return reads;
}

// The tensors of every file of the checkpoint. The state is there in every checkpoint.
using Wanted = std::map<std::string, std::vector<const LoadedTensor*>>;
Wanted by_file(std::span<const LoadedTensor> tensors) {
  Wanted all;
  all.try_emplace(kStateFile);
  for (const LoadedTensor& t : tensors) all[t.file].push_back(&t);
  return all;
}

// The header from the bytes that count for the checksum.
SafetensorsHeader read_header(CheckpointReader& file) {
  std::uint64_t length = 0;
  std::vector<std::byte> bytes(std::min<std::uint64_t>(sizeof length, file.size()));
  file.read(bytes);
  std::memcpy(&length, bytes.data(), bytes.size());
  if (length <= limits::kSafetensorsHeaderRead && length <= file.left()) {
    bytes.resize(bytes.size() + length);
    file.read(std::span(bytes).subspan(sizeof length));
  }
  return parse_safetensors_header(bytes, file.size(), file.path());
}

// The file from front to back. Tensors that nobody asked for count for the checksum as well.
void load_file(CheckpointReader& file, std::span<const LoadedTensor* const> tensors,
               Unasked unasked) {
  const SafetensorsHeader header = read_header(file);
  const Reads reads = match(header, tensors, unasked);
  auto next = reads.begin();
  for (const SafetensorsEntry& entry : header.entries()) {
    const bool asked = next != reads.end() && next->first == &entry;
    const LoadedTensor* t = asked ? (next++)->second : nullptr;
    if (t != nullptr && t->data != nullptr) {
      file.read({t->data, entry.bytes});
    } else {
      file.pass(entry.bytes, t != nullptr ? t->sink : ByteSink());
    }
  }
  file.finish();
}

}  // namespace

SavedTensor SavedTensor::of(std::string name, const ConstTensorView& view) {
  check_host(name, view.contiguous(), view.device);
  const std::span<const std::byte> bytes(view.data, view.bytes());
  return {.name = std::move(name),
          .dtype = view.dtype,
          .shape = view.shape,
          .source = [bytes](const ByteSink& sink) { sink(bytes); }};
}

LoadedTensor LoadedTensor::of(std::string name, const TensorView& view) {
  check_host(name, view.contiguous(), view.device);
  return {.name = std::move(name),
          .dtype = view.dtype,
          .shape = view.shape,
          .data = view.data,
          .sink = {}};
}

Bytes checkpoint_bytes(const TrainerState& state, std::span<const SavedTensor> tensors) {
  return bytes_of(writers_of(tensors), to_json(state));
}

void check_checkpoint_space(const std::string& folder, Bytes needed) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) fail_io(folder, "ask for free space", errno);
  if (disk.f_blocks == 0) return;  // a file system that does not say
  const Bytes free{static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize};
  if (needed <= free) return;
  const Bytes missing = needed - free;
  fail(ErrorCode::io,
       fmt::format("{}: the next checkpoint needs {} ({} bytes), {} are free: {} ({} bytes) are "
                   "missing; earlier checkpoints are untouched",
                   folder, needed, needed.count, free, missing, missing.count),
       {{fmt::format("free {} on that disk, or set another output_dir", missing),
         "and resume: training continues from the newest checkpoint"}});
}

std::string save_checkpoint(const std::string& run, const TrainerState& state,
                            std::span<const SavedTensor> tensors, const CheckpointNames& names,
                            const std::function<void(const AtomicFolder&)>& more) {
  const std::string name = checkpoint_name(state.step, names);
  const std::string parent = checkpoints_folder(run, names);
  const Writers writers = writers_of(tensors);
  const std::string state_text = to_json(state);
  return while_doing(fmt::format("saving the checkpoint {}", name), [&] {
    create_folders(parent);
    sync_folder(run);
    clean_leftovers(parent);
    check_checkpoint_space(parent, bytes_of(writers, state_text));

    AtomicFolder folder(parent + "/" + name);
    CheckpointManifest manifest{.step = state.step,
                                .world_size = state.world_size,
                                .config_hash = state.config_hash,
                                .plan_hash = state.plan_hash,
                                .model_hash = state.model_hash,
                                .files = {}};
    const auto put = [&](const std::string& file_name, auto&& fill) {
      HashedFile file(folder.file(file_name));
      fill(file);
      file.close();
      manifest.files.push_back({file_name, file.written(), file.checksum()});
    };
    for (const auto& [file_name, writer] : writers) {
      put(file_name, [&](HashedFile& file) {
        writer.write_to([&](std::span<const std::byte> piece) { file.write(piece); }, file.path());
      });
    }
    put(kTrainerFile, [&](HashedFile& file) { file.write(state_text); });
    if (more) more(folder);

    HashedFile manifest_file(folder.file(kManifestFile));
    manifest_file.write(to_json(manifest));
    manifest_file.close();
    HashedFile committed(folder.file(kCommittedFile));
    committed.write(manifest_file.checksum());
    committed.close();
    folder.commit();

    write_text_file(parent + "/" + kLatestFile, name);
    return folder.path();
  });
}

void check_checkpoint(const std::string& folder, std::span<const LoadedTensor> tensors,
                      Unasked unasked) {
  for (const auto& [name, wanted] : by_file(tensors)) {
    match(SafetensorsFile::open(folder + "/" + name, DiskMode::buffered).header(), wanted, unasked);
  }
}

void load_checkpoint(const std::string& folder, std::span<const LoadedTensor> tensors,
                     Unasked unasked) {
  check_checkpoint(folder, tensors, unasked);  // before the first tensor changes
  const CheckpointManifest manifest = read_manifest(folder);
  for (const auto& [name, wanted] : by_file(tensors)) {
    CheckpointReader file(folder, manifest.file(folder, name));
    load_file(file, wanted, unasked);
  }
}

}  // namespace ballast::train
