#include <CLI/CLI.hpp>
#include <filesystem>

#include "app/command.h"
#include "app/output.h"
#include "core/error.h"
#include "io/atomic_file.h"
#include "report/html_report.h"
#include "report/run_log.h"

namespace ballast {
namespace {

// ballast report RUN: the page of a run, made again from its log. Training writes it by itself when
// it ends; this is for runs that did not get there.
class Report : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("run", run_, "folder of a run, or its run log")->required();
    app.add_option("--out", out_, "the page to write (default: report.html beside the log)");
  }

  void run() override {
    namespace fs = std::filesystem;
    const fs::path log = fs::is_directory(run_) ? fs::path(run_) / kRunLogFile : fs::path(run_);
    if (out_.empty()) out_ = (log.parent_path() / "report.html").string();
    const RunHistory history = read_run_log(log.string());
    if (history.starts == 0 && history.steps.empty()) {
      fail(ErrorCode::input,
           fmt::format("{} is no run log: no line of it tells of a run or a step", log.string()));
    }
    AtomicFile page(out_);
    page.write(html_report(history));
    page.commit();
    print(fmt::format("{}: {} steps\n", out_, history.steps.size()));
  }

 private:
  std::string run_, out_;
};

const RegisterCommand<Report> kReport("report", "makes the HTML page of a run from its log");

}  // namespace
}  // namespace ballast
