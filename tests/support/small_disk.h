#pragma once

#include <sys/mount.h>

#include <string>

namespace ballast::test {

// A disk of a few MB of its own (tmpfs), where the machine lets us mount one; mounted() tells.
class SmallDisk {
 public:
  SmallDisk(std::string folder, const std::string& options)
      : folder_(std::move(folder)),
        mounted_(::mount("ballast_test", folder_.c_str(), "tmpfs", 0, options.c_str()) == 0) {}
  SmallDisk(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }

  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_; }
  bool make_read_only() const {
    return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  std::string folder_;
  bool mounted_;
};

}  // namespace ballast::test
