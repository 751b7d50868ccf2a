#include "train/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/leftovers.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"
#include "report/secrets.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = "lock";
constexpr std::uint64_t kMaxConfig = 64 << 20;

// "dddddddd_dd-dd-dd", and "-dd" where two began in one second.
bool is_run_name(std::string_view name) {
  constexpr std::string_view kForm = "dddddddd_dd-dd-dd-dd";
  if (name.size() != kForm.size() && name.size() != kForm.size() - 3) return false;
  return std::equal(name.begin(), name.end(), kForm.begin(), [](char c, char form) {
    return form == 'd' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == form;
  });
}

std::string read_config_text(const std::string& path) {
  return read_text_file(path, kMaxConfig, "a config file");
}

// Held until the descriptor is closed, by whatever way the process ends. The file stays: to remove
// it would let a third process lock a name that the second has just opened.
FileDescriptor lock(const std::string& folder) {
  const std::string path = folder + "/" + kLockFile;
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) fail_io(path, "open the lock file", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      std::array<char, 32> text{};
      const ssize_t got = ::pread(fd.get(), text.data(), text.size() - 1, 0);
      std::string pid(text.data(), to_size(std::max<ssize_t>(got, 0)));
      while (!pid.empty() && pid.back() == '\n') pid.pop_back();
      fail(ErrorCode::io,
           fmt::format("{}: process {} is training in this run folder", folder,
                       pid.empty() ? "(unknown)" : printable(pid)),
           {{"wait until it is done, or stop it", "two runs would overwrite each other"},
            {"start without resume", "a new run gets a folder of its own"}});
    }
    // Some network file systems have no locks; a run is worth more than its lock.
    if (errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS) {
      fail_io(path, "lock the file", errno);
    }
    log::warn("{}: no locks on this file system, a second run in this folder would not be noticed",
              folder);
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0) fail_io(path, "write the process id", errno);
  for (std::size_t done = 0; done < pid.size();) {
    const ssize_t n =
        ::pwrite(fd.get(), pid.data() + done, pid.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io(path, "write the process id", n < 0 ? errno : ENOSPC);
    done += to_size(n);
  }
  return fd;
}

bool take(const std::string& file) {
  if (::unlink(file.c_str()) == 0) return true;
  if (errno != ENOENT) log::debug("{}: cannot be removed, so it asks for nothing", file);
  return false;
}

void check_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 200 ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    fail(ErrorCode::input,
         fmt::format("output_name = \"{}\": expected a file name without folders, such as my_lora",
                     printable(name)));
  }
}

}  // namespace

std::string folder_name(SavePoint at) {
  return fmt::format("{}{}", at.kind == SavePoint::Kind::epoch ? "epoch" : "step", at.number);
}

std::string model_file_name(const std::string& output_name, SavePoint at) {
  check_name(output_name);
  return at.kind == SavePoint::Kind::epoch
             ? fmt::format("{}-{:06}.safetensors", output_name, at.number)
             : fmt::format("{}-step{:08}.safetensors", output_name, at.number);
}

std::string last_model_file_name(const std::string& output_name) {
  check_name(output_name);
  return output_name + ".safetensors";
}

RunFolder::RunFolder(std::string path, FileDescriptor lock)
    : path_(std::move(path)),
      save_file_(path_ + "/save"),
      save_quit_file_(path_ + "/save_quit"),
      lock_(std::move(lock)) {}

RunFolder RunFolder::create(const std::string& output_dir, std::time_t now) {
  create_folders(output_dir);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> name{};
  std::strftime(name.data(), name.size(), "%Y%m%d_%H-%M-%S", &utc);
  for (int twin = 0; twin < 100; ++twin) {
    std::string path = fmt::format("{}/{}", output_dir, name.data());
    if (twin > 0) path += fmt::format("-{:02}", twin);
    if (::mkdir(path.c_str(), 0777) == 0) {
      sync_folder(output_dir);
      FileDescriptor held = lock(path);
      return RunFolder(std::move(path), std::move(held));
    }
    if (errno != EEXIST) fail_io(path, "create the run folder", errno);
  }
  fail(ErrorCode::io,
       fmt::format("{}: a hundred runs of the second {} are there", output_dir, name.data()));
}

std::string find_run(const std::string& output_dir, const std::string& name) {
  const std::vector<std::string> runs = runs_in(output_dir);
  const std::vector<Advice> help = {
      runs.empty() ? Advice{"start without resume", "a new run begins"}
                   : Advice{"resume without a name", "continues with the newest run"}};
  if (name.empty() && runs.empty()) {
    fail(ErrorCode::input, fmt::format("{}: no run to resume", output_dir), help);
  }
  // An absolute path replaces output_dir.
  fs::path path = fs::path(output_dir) / (name.empty() ? runs.back() : name);
  std::error_code error;
  // As a shell completes it: output_dir/name.
  if (!name.empty() && !fs::is_directory(path, error) && fs::is_directory(name, error)) path = name;
  if (!path.has_filename()) path = path.parent_path();  // "name/"
  if (!fs::is_directory(path, error)) {
    fail(ErrorCode::input,
         fmt::format("{}: no such run to resume; {}", path.string(),
                     runs.empty()
                         ? "there are none"
                         : fmt::format("{} are there, the newest is {}", runs.size(), runs.back())),
         help);
  }
  return path.string();
}

RunFolder RunFolder::open(const std::string& output_dir, const std::string& name) {
  const std::string path = find_run(output_dir, name);
  FileDescriptor held = lock(path);
  clean_leftovers(path);
  return RunFolder(path, std::move(held));
}

RunFolder RunFolder::shared(const std::string& output_dir,
                            const std::optional<std::string>& resumed) {
  if (resumed) return RunFolder(find_run(output_dir, *resumed), FileDescriptor());
  create_folders(output_dir);
  return RunFolder(output_dir, FileDescriptor());
}

RunFolder RunFolder::at(const std::string& path) {
  create_folders(path);
  FileDescriptor held = lock(path);
  clean_leftovers(path);
  return RunFolder(path, std::move(held));
}

std::string RunFolder::copy_config(const std::string& file) const {
  const std::string bytes = hide_secrets(read_config_text(file));
  struct stat original {};
  if (::stat(file.c_str(), &original) != 0) fail_io(file, "ask for its mode", errno);
  const fs::path name = fs::path(file).filename();
  for (int n = 1;; ++n) {
    const std::string copy = n == 1 ? fmt::format("{}/{}", path_, name.string())
                                    : fmt::format("{}/{}-{}{}", path_, name.stem().string(), n,
                                                  name.extension().string());
    std::error_code error;
    if (fs::exists(fs::symlink_status(copy, error))) {
      if (fs::is_regular_file(copy, error) && read_config_text(copy) == bytes) return copy;
      continue;
    }
    AtomicFile out(copy);
    // Before the first byte: configs may hold what is for few people's eyes.
    const mode_t mode = (original.st_mode & 0666) | S_IRUSR | S_IWUSR;
    if (::chmod(out.temporary_path().c_str(), mode) != 0) fail_io(copy, "set its mode", errno);
    out.write(bytes);
    out.commit();
    return copy;
  }
}

AtomicFolder RunFolder::saved_model(SavePoint at) const {
  return AtomicFolder(path_ + "/" + folder_name(at));
}

FileRequest RunFolder::take_request() const {
  const bool quit = take(save_quit_file_);
  const bool save = take(save_file_);
  return quit ? FileRequest::save_quit : save ? FileRequest::save : FileRequest::none;
}

std::vector<std::string> runs_in(const std::string& output_dir) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::is_directory(output_dir, error)) return names;
  for (fs::directory_iterator it(output_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    if (is_run_name(name) && it->is_directory(unknown)) names.push_back(name);
  }
  if (error) fail_io(output_dir, "list the folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ballast::train
