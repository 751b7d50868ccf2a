#pragma once

#include <string>
#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

// A folder that appears under its name complete or not at all. Files are made in a temporary folder
// beside it, each forced to disk by whoever writes it; commit() forces the folder, renames it to
// `path` and forces the parent. A folder that was at `path` is exchanged with the new one in one
// step where the file system can. Without commit() the temporary folder is removed; that of a
// killed process is removed by the next one that writes there (io/leftovers.h). Every failure is an
// Error of ErrorCode::io.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::string path);  // the parent exists
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_; }
  std::string file(std::string_view name) const;  // its path while it is written
  void commit();                                  // once

 private:
  std::string path_;
  std::string temporary_;  // empty once committed
  FileDescriptor lock_;    // of the temporary folder
};

// Removes a folder of results so that no reader ever takes half of it for the whole: it is renamed
// to `<path>.deleting` first.
inline constexpr std::string_view kDeletingEnd = ".deleting";
void delete_folder(const std::string& path);

void create_folders(const std::string& path);  // with its parents; fine when it is there
void sync_folder(const std::string& path);     // forces its list of names to disk

}  // namespace ballast
