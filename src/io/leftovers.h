#pragma once

#include <string>
#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

// Temporary files and folders, and how those of a killed process are told from those in use.
//
// AtomicFile writes to `.<name>.ballast-<pid>-<n>.tmp`, AtomicFolder to
// `<name>.tmp-ballast-<pid>-<random>`. From its creation until it has its name each is locked
// (flock) by the process that writes it; the kernel drops the lock when that process ends, in
// whatever way. One that can be locked is abandoned. Process ids alone would not tell: they are
// used again, and in a container every run may have the same one, or see none of the others. Where
// a file system has no locks, leftovers stay; in folders of runs the id decides there.

std::string temporary_file_name(std::string_view name);
std::string temporary_folder_name(std::string_view name);

// Locks what was just created at `path`. False: somebody who removes leftovers was faster, so it is
// made again under another name. fd: of the file or folder.
bool lock_temporary(const FileDescriptor& fd, const std::string& path);

// Removes abandoned temporary files and folders in `folder` and says so in one line. AtomicFile and
// AtomicFolder call it for every folder that they write to, once in a process.
void remove_leftovers_once(const std::string& folder);

// The same each time it is called, for a folder that belongs to a run: also folders `*.deleting`
// (delete_folder) and temporary files of earlier versions, which had no mark and no lock, of
// processes that are gone or have this one's id. Returns how many were removed; those that cannot
// be removed stay.
int clean_leftovers(const std::string& folder);

}  // namespace ballast
