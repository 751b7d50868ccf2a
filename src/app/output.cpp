#include "app/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/status_line.h"
#include "core/to_size.h"
#include "core/wrap_text.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

// Also one that was closed: isatty() no longer tells then.
bool is_terminal() {
  struct stat s {};
  return ::fstat(STDOUT_FILENO, &s) == 0 && S_ISCHR(s.st_mode);
}

thread_local std::string* captured = nullptr;

}  // namespace

CapturedOutput::CapturedOutput(std::string& to) : before_(std::exchange(captured, &to)) {}

CapturedOutput::~CapturedOutput() { captured = before_; }

void print(std::string_view text) {
  if (captured != nullptr) {
    captured->append(text);
    return;
  }
  static bool reader_gone = false;
  while (!text.empty() && !reader_gone) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    const int error = errno;
    if (written >= 0) {
      text.remove_prefix(to_size(written));
    } else if (error == EPIPE || (error == EIO && is_terminal())) {
      reader_gone = true;
    } else if (error != EINTR) {
      fail_io("standard output", "write", error);
    }
  }
}

std::string without_rule_ids(std::string_view message) {
  constexpr std::array<std::string_view, 7> kReaders = {"st.",  "folder.", "index.", "gguf.",
                                                        "pth.", "tok.",    "spm."};
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_0123456789";
  std::string out;
  for (std::size_t at = 0; at < message.size();) {
    const std::string_view rest = message.substr(at);
    const bool begins = at == 0 || out.ends_with(": ");
    const auto reader = std::ranges::find_if(
        kReaders, [&](std::string_view r) { return begins && rest.starts_with(r); });
    if (reader != kReaders.end()) {
      const std::size_t end = rest.find_first_not_of(kLetters, reader->size());
      if (end != rest.npos && end > reader->size() && rest.substr(end).starts_with(": ")) {
        at += end + 2;
        continue;
      }
    }
    out += message[at++];
  }
  return out;
}

std::string progress_json(const log::ProgressRecord& record) {
  const nlohmann::ordered_json line = {{"kind", "progress"},
                                       {"what", record.what},
                                       {"done", record.done},
                                       {"total", record.total},
                                       {"unit", record.bytes ? "bytes" : "count"},
                                       {"ended", record.ended}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void show_progress_as_asked() {
  const char* const asked = std::getenv("BALLAST_PROGRESS");
  if (asked == nullptr || std::string_view(asked) != "json") return;
  log::set_sink({.line = {}, .progress = [](const log::ProgressRecord& record) {
                   std::fputs((progress_json(record) + "\n").c_str(), stderr);
                 }});
}

std::size_t text_columns(std::FILE* file) {
  if (isatty(fileno(file)) == 0) return kPlainColumns;
  return to_size(StatusLine::columns_of(file));
}

}  // namespace ballast
