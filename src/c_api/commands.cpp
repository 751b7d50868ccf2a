#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "app/program.h"
#include "ballast/ballast.h"
#include "c_api/guard.h"
#include "c_api/results.h"
#include "c_api/settings.h"
#include "core/simd.h"
#include "core/version.h"
#include "memory/gpu.h"
#include "plan/already_held.h"

namespace ballast::c_api {
namespace {

// "gpu": "24GB" is --gpu=24GB, true a flag alone, a list the same flag several times. With the sign
// between, a value that begins with a dash is still a value.
void add_flag(const std::string& name, const Json& value, std::vector<std::string>& to) {
  if (value.is_array()) {
    for (const Json& v : value) add_flag(name, v, to);
  } else if (value.is_boolean()) {
    if (value.get<bool>()) to.push_back("--" + name);
  } else if (value.is_string()) {
    to.push_back("--" + name + "=" + value.get<std::string>());
  } else if (value.is_number()) {
    to.push_back("--" + name + "=" + text_of(value));
  } else if (!value.is_null()) {
    fail(ErrorCode::usage, fmt::format("flags: {} is an object, expected a text, a number, true or "
                                       "a list of them",
                                       printable(name)));
  }
}

std::vector<std::string> plan_arguments(const char* request) {
  std::vector<std::string> arguments = {"plan"};
  std::vector<std::string> flags;
  take_settings(parse_settings(request), "the request",
                {{"config", [&](const Json& v) { arguments.push_back(string_of(v, "config")); }},
                 {"flags", [&](const Json& v) {
                    if (!v.is_object()) fail(ErrorCode::usage, "flags: expected an object");
                    for (const auto& [name, value] : v.items()) add_flag(name, value, flags);
                  }}});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.emplace_back("--json");
  return arguments;
}

std::vector<std::string> texts(const char* const* from, std::size_t count, const char* what) {
  if (count > 0) require(from, what);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) {
    require(from[i], what);
    all.emplace_back(from[i]);
  }
  return all;
}

std::string run(const std::vector<std::string>& arguments) {
  measure_already_held();
  std::string output;
  run_command(arguments, output);
  return output;
}

}  // namespace
}  // namespace ballast::c_api

using namespace ballast::c_api;  // NOLINT(google-build-using-namespace): C functions stand outside

struct ballast_stop {
  std::atomic<bool> set{false};
};

uint32_t ballast_abi(void) { return BALLAST_ABI; }

const char* ballast_version_json(void) {
  static const std::string text = text_of({{"version", ballast::version()},
                                           {"abi", BALLAST_ABI},
                                           {"cuda", ballast::built_with_cuda()},
                                           {"isa", name_of(ballast::isa())}});
  return text.c_str();
}

void ballast_free(char* text) { std::free(text); }

int ballast_command(const char* const* arguments, size_t count, char** output, char** err) {
  return guarded(err, [&] {
    const std::vector<std::string> all = texts(arguments, count, "an argument");
    ballast::measure_already_held();
    std::string text;
    try {
      ballast::run_command(all, text);
    } catch (...) {
      give(output, text);
      throw;
    }
    give(output, text);
  });
}

int ballast_plan(const char* request, char** json, char** err) {
  return guarded(err, [&] {
    const std::vector<std::string> arguments = plan_arguments(request);
    ballast::measure_already_held();
    std::string text;
    try {
      ballast::run_command(arguments, text);
    } catch (const ballast::Error& e) {
      // A refusal with its advice is a plan that does not fit; without output it is another
      // refusal.
      if (e.code() != ballast::ErrorCode::refused || text.empty()) throw;
    }
    give(json, text);
  });
}

int ballast_inspect(const char* path, char** json, char** err) {
  return guarded(err, [&] {
    require(path, "path");
    give(json, run({"inspect", "--json", "--", path}));
  });
}

ballast_stop* ballast_stop_new(void) { return new (std::nothrow) ballast_stop; }
void ballast_stop_set(ballast_stop* stop) {
  if (stop != nullptr) stop->set = true;
}
void ballast_stop_free(ballast_stop* stop) { delete stop; }

int ballast_train(const char* config, const char* const* flags, size_t count,
                  const ballast_train_callbacks* callbacks, ballast_stop* stop, char** result,
                  char** err) {
  return guarded(err, [&] {
    require(config, "config");
    ballast_train_callbacks to = {};
    if (callbacks != nullptr) {
      if (callbacks->struct_size != sizeof to) {
        ballast::fail(ballast::ErrorCode::usage,
                      fmt::format("the callbacks' struct_size is {}, expected {}",
                                  callbacks->struct_size, sizeof to));
      }
      to = *callbacks;
    }
    ballast::v1::TrainCallbacks called;
    if (to.note != nullptr) {
      called.note = [&](const std::string& text) { to.note(text.c_str(), to.user); };
    }
    if (to.planned != nullptr) {
      called.planned = [&](const ballast::v1::Plan& p) {
        to.planned(text_of(json_of(p)).c_str(), to.user);
      };
    }
    if (to.step != nullptr) {
      called.step = [&](const ballast::v1::TrainStep& s) {
        to.step(text_of(json_of(s)).c_str(), to.user);
      };
    }
    if (stop != nullptr) called.stop = [&] { return stop->set.load(); };
    give(result,
         text_of(json_of(ballast::v1::train(config, called, texts(flags, count, "a flag")))));
  });
}
