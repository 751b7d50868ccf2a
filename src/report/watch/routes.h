#pragma once

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "report/watch/event_stream.h"
#include "report/watch/request.h"

namespace ballast {

// What the live page answers: a request in, an answer out. Sockets are app/watch_server.h's.

struct WatchAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  // One of these is what it holds.
  std::string body;
  std::string_view asset;  // of the program itself
  FileDescriptor file;
  ByteRange range;  // of the file
  std::unique_ptr<EventStream> events;
};

struct WatchOptions {
  std::string folder;              // of a run, or an output_dir with runs
  std::string token;               // whoever knows it may read
  std::string cookie = "ballast";  // its name
  std::vector<std::string> hosts = {"127.0.0.1", "localhost", "::1"};
  std::function<double()> now = {};         // seconds since 1970; empty: the system's
  std::function<double()> steady_now = {};  // of a clock that never goes back; empty: the system's
};

class WatchRoutes {
 public:
  // Fails with ErrorCode::io where the folder cannot be opened.
  explicit WatchRoutes(WatchOptions options);

  WatchAnswer answer(const WatchRequest& request);

  double now() const { return options_.now(); }
  double steady_now() const { return options_.steady_now(); }
  // Whether any run here is in progress.
  bool any_running() const;

 private:
  struct Listed {
    std::string name;
    RunState state;
  };
  bool is_allowed(const WatchRequest& request, std::string_view path) const;
  WatchAnswer route(const WatchRequest& request, std::string_view path);
  // The runs below the folder, the newest last.
  std::vector<std::string> run_names() const;
  std::optional<WatchedFolder> run_folder(const std::string& name) const;
  std::string newest_run() const;
  // Of "?name=", or the newest; nullptr: there is no such run.
  RunReader* reader(const WatchRequest& request);
  RunReader* reader_of(const std::string& name);
  WatchAnswer runs() const;
  WatchAnswer run(const WatchRequest& request);
  WatchAnswer plan(const WatchRequest& request);
  WatchAnswer events(const WatchRequest& request);
  WatchAnswer preview(const WatchRequest& request, std::string_view file);
  WatchAnswer report(const WatchRequest& request);
  WatchAnswer metrics();
  WatchAnswer health();

  WatchOptions options_;
  WatchedFolder root_;
  std::string own_name_;          // of the folder, where it is itself a run
  std::list<RunReader> readers_;  // used last, first
};

// With nothing that ends the value of a Prometheus label, and as UTF-8.
std::string prometheus_label(std::string_view text);
// Prometheus text of a run, format 0.0.4, without the lines that describe what there is.
struct MetricsOfRun {
  const RunReader& run;
  const RunState& state;
  std::optional<double> predicted_seconds;  // of a step, by its plan
};
std::string prometheus_text(std::span<const MetricsOfRun> runs, double now);

}  // namespace ballast
