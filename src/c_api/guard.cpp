#include "c_api/guard.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include "app/output.h"
#include "ballast/ballast.h"

namespace ballast::c_api {
namespace {

const pid_t kLoadedBy = ::getpid();

template <class AdviceList>
std::string error_text(int code, std::string_view message, const std::vector<std::string>& trail,
                       const AdviceList& advice) {
  Json changes = Json::array();
  for (const auto& a : advice) changes.push_back({{"change", a.change}, {"effect", a.effect}});
  return text_of({{"code", code},
                  {"message", without_rule_ids(message)},
                  {"trail", trail},
                  {"advice", std::move(changes)}});
}

int give_error(char** err, ErrorCode code, const std::string& message) {
  give(err, error_text(static_cast<int>(code), message, {}, std::vector<Advice>()));
  return static_cast<int>(code);
}

}  // namespace

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

char* copied(std::string_view text) noexcept {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

void give(char** to, std::string_view text) {
  if (to == nullptr) return;
  *to = copied(text);
  if (*to == nullptr) throw std::bad_alloc();
}

int explain(char** err) noexcept {
  try {
    try {
      throw;
    } catch (const Error& e) {
      give(err, error_text(static_cast<int>(e.code()), e.what(), e.trail(), e.advice()));
      return static_cast<int>(e.code());
    } catch (const v1::Error& e) {
      give(err, error_text(static_cast<int>(e.code()), e.what(), e.trail(), e.advice()));
      return static_cast<int>(e.code());
    } catch (const std::bad_alloc&) {
      return give_error(err, ErrorCode::io, "the system has no memory left for this process");
    } catch (const std::system_error& e) {
      return give_error(err, ErrorCode::io,
                        fmt::format("the system refused something to this process: {}", e.what()));
    } catch (const std::exception& e) {
      return give_error(err, ErrorCode::internal, e.what());
    } catch (...) {
      return give_error(err, ErrorCode::internal, "an exception of no known type");
    }
  } catch (...) {  // not even a text fits into memory
    return static_cast<int>(ErrorCode::io);
  }
}

void require_own_process() {
  if (::getpid() == kLoadedBy) return;
  fail(ErrorCode::usage, "this process was forked after it had loaded Ballast",
       {{"start processes with exec (in Python: multiprocessing's \"spawn\")",
         "threads and memory of the library do not survive a fork"}});
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) fail(ErrorCode::usage, fmt::format("{} is null", what));
}

}  // namespace ballast::c_api
