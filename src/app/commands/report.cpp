#include <CLI/CLI.hpp>
#include <filesystem>

#include "app/command.h"
#include "app/output.h"
#include "core/error.h"
#include "io/atomic_file.h"
#include "report/html_report.h"
#include "report/last_run.h"
#include "report/run_log.h"

namespace ballast {
namespace {

// ballast report RUN: the page of a run, made again from its log. Training writes it by itself when
// it ends; this is for runs that did not get there.
class Report : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("run", run_, "folder of a run, or an output_dir: its newest run")->required();
    app.add_option("--out", out_, "the page to write (default: report.html beside the log)");
  }

  void run() override {
    namespace fs = std::filesystem;
    const auto found = find_run_file(run_, kRunLogFile);
    if (!found && fs::is_directory(run_)) {
      fail(
          ErrorCode::input,
          fmt::format("{} holds no run: no file {} there or in one of its folders", printable(run_),
                      kRunLogFile),
          {{"ballast report OUTPUT_DIR", "the output_dir of the config, or a run's folder in it"}});
    }
    const fs::path log = found.value_or(run_);
    if (out_.empty()) out_ = (log.parent_path() / "report.html").string();
    const RunHistory history = read_run_log(log.string());
    if (history.starts == 0 && history.steps.empty()) {
      fail(ErrorCode::input, "{} is not a run log: it names no run and no step",
           printable(log.string()));
    }
    write_text_file(out_, html_report(history));
    print(fmt::format("{}: {} steps\n", out_, history.steps.size()));
  }

 private:
  std::string run_, out_;
};

const RegisterCommand<Report> kReport("report", "makes the HTML page of a run from its log");

}  // namespace
}  // namespace ballast
