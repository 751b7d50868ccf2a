#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "io/atomic_folder.h"
#include "memory/file_descriptor.h"

namespace ballast::train {

// After which epoch or step a model was saved.
struct SavePoint {
  enum class Kind : std::uint8_t { epoch, step };
  Kind kind = Kind::epoch;
  std::int64_t number = 0;
};

std::string folder_name(SavePoint at);  // "epoch3", "step200"

// Names of musubi-tuner's files, in output_dir itself: "name-000003.safetensors",
// "name-step00000200.safetensors"; the last one is "name.safetensors". A name that is no file name
// is an Error of ErrorCode::input.
std::string model_file_name(const std::string& output_name, SavePoint at);
std::string last_model_file_name(const std::string& output_name);

// What the user asked for by making a file in the run folder.
enum class FileRequest { none, save, save_quit };

// The folder of one run, output_dir/20260131_23-59-59 (UTC), held by this process alone while the
// object lives: a second process that wants it fails (ErrorCode::io) with the id of the first.
class RunFolder {
 public:
  // A new one. Two runs in one second are told apart: the later is ..._23-59-59-01.
  static RunFolder create(const std::string& output_dir, std::time_t now = std::time(nullptr));
  // name: of a folder in output_dir, or a path; "": the newest. Fails (ErrorCode::input) when there
  // is none. Leftovers of killed processes are removed.
  static RunFolder open(const std::string& output_dir, const std::string& name = "");

  // For a rank that does not lead: nothing is locked, made or cleaned. The run that is resumed as
  // open() finds it, else output_dir.
  static RunFolder shared(const std::string& output_dir, const std::optional<std::string>& resumed);

  // The folder itself, made where it is not there yet: for runs that are named by their folder.
  static RunFolder at(const std::string& path);

  const std::string& path() const { return path_; }

  // A copy for the record, readable by no more people than the original. Keys of web services are
  // hidden (report/secrets.h), all other bytes are those of the file. Where the
  // name is taken by other content (two files of one name; a config changed before a resume) it
  // becomes name-2.toml, -3, ... Returns its path.
  std::string copy_config(const std::string& file) const;

  // <run>/epoch3: fill it, then commit it.
  AtomicFolder saved_model(SavePoint at) const;

  // Looks for the files `save` and `save_quit` and removes them: two system calls, no allocation. A
  // file that cannot be removed asks for nothing, else it would ask after every step.
  FileRequest take_request() const;

 private:
  RunFolder(std::string path, FileDescriptor lock);

  std::string path_;
  std::string save_file_, save_quit_file_;
  FileDescriptor lock_;
};

// The run that RunFolder::open() would open.
std::string find_run(const std::string& output_dir, const std::string& name);

// The runs in output_dir by name, oldest first; empty when there is no such folder.
std::vector<std::string> runs_in(const std::string& output_dir);

}  // namespace ballast::train
