#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "report/flight_record.h"
#include "report/last_run.h"
#include "report/run_log.h"
#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A process that "trains" in `folder` until it is killed.
class Victim {
 public:
  explicit Victim(const std::string& folder) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    child_ = ::fork();
    if (child_ == 0) {
      FlightRecorder recorder(folder + "/" + std::string(kFlightFile),
                              {.command = "ballast train tiny.toml",
                               .folder = folder,
                               .total_steps = 900,
                               .planned = {{10'000'000}, {2'000'000}, {}, {30'000'000}},
                               .allowed = {{20'000'000}, {4'000'000}, {}, {50'000'000}}});
      FlightState state;
      state.phase = Phase::update;
      state.step = 41;
      state.epoch = 3;
      state.loss = 0.0625;
      state.measured = state.most = {{9'000'000}, {2'000'000}, {}, {25'000'000}};
      recorder.update(state);
      [[maybe_unused]] const auto told = ::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    char ready = 0;
    if (::read(ends[0], &ready, 1) != 1) throw std::runtime_error("victim");
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Victim() { kill(); }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_;
};

TEST(DoctorCommand, ExplainsARunThatWasKilled) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path("run"));
  Victim victim(dir.path("run"));
  const Finished before = run_ballast({"doctor", dir.path(), "--no-disk-trial", "--json"});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  EXPECT_EQ(json::parse(before.out)["last_run"]["outcome"], "running");

  victim.kill();
  const Finished after = run_ballast({"doctor", dir.path(), "--no-disk-trial"});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_THAT(after.out,
              AllOf(HasSubstr("last run: update of step 42 of 900"), HasSubstr("loss 0.0625"),
                    HasSubstr("25.00 MB"), HasSubstr("30.00 MB"), HasSubstr("50.00 MB"),
                    HasSubstr("ballast train tiny.toml --resume")));
  const Finished asked = run_ballast({"doctor", dir.path("run"), "--no-disk-trial", "--json"});
  const json last = json::parse(asked.out)["last_run"];
  EXPECT_EQ(last["outcome"], "died");
  EXPECT_EQ(last["phase"], "update");
  EXPECT_EQ(last["step"], 41);
  EXPECT_EQ(last["measured"]["ram"], 25'000'000);
  EXPECT_NE(last["out_of_memory"], "certain");
}

TEST(DoctorCommand, FindsTheLastRunByItself) {
  const TempDir dir;
  ::setenv("XDG_STATE_HOME", dir.path("state").c_str(), 1);
  const Finished none = run_ballast({"doctor", "--no-disk-trial", "--json"});
  EXPECT_TRUE(json::parse(none.out)["last_run"].is_null());
  {
    FlightRecorder recorder(dir.path("flight_record"), {});
    recorder.phase(Phase::finished);
    remember_last_run(dir.path("flight_record"));
  }
  const Finished found = run_ballast({"doctor", "--no-disk-trial", "--json"});
  EXPECT_EQ(json::parse(found.out)["last_run"]["outcome"], "finished");
  std::filesystem::remove(dir.path("flight_record"));
  EXPECT_EQ(run_ballast({"doctor", "--no-disk-trial"}).exit_code, 0);
  ::unsetenv("XDG_STATE_HOME");
}

TEST(DoctorCommand, FolderWithoutARunIsAnInputError) {
  const TempDir dir;
  const Finished f = run_ballast({"doctor", dir.path()});
  EXPECT_EQ(f.exit_code, 4);
  EXPECT_THAT(f.err, AllOf(HasSubstr("holds no run"), HasSubstr("what would help")));
  dir.write("flight_record", "rubbish");
  const Finished damaged = run_ballast({"doctor", dir.path()});
  EXPECT_EQ(damaged.exit_code, 4);
  EXPECT_THAT(damaged.err, HasSubstr("no flight record"));
}

TEST(DoctorCommand, MeasuresTheDiskOfAFolder) {
  const TempDir dir;
  const Finished f = run_ballast({"doctor", "--disk", dir.path(), "--json"});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_GT(json::parse(f.out)["disk_read_bytes_per_s"].get<double>(), 0);
}

TEST(DoctorCommand, SaysThatThereIsNoGpu) {
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  const TempDir dir;
  const Finished f = run_ballast({"doctor", "--no-disk-trial", "--disk", dir.path()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("GPU device"), HasSubstr("no GPU: "),
                           HasSubstr("runs compute on the CPU")));
  const Finished j = run_ballast({"doctor", "--no-disk-trial", "--json", "--disk", dir.path()});
  EXPECT_TRUE(json::parse(j.out)["gpu"].is_null());
}

TEST(ReportCommand, TakesAnOutputDirAsDoctorDoes) {
  const TempDir dir;
  for (const char* run : {"20260101", "20260102"}) {
    dir.write(fmt::format("out/{}/empty", run), "");
    RunLog log(dir.path(fmt::format("out/{}/{}", run, kRunLogFile)), 0);
    RunInfo info;
    info.title = run;
    log.run(info);
  }
  const auto now = std::filesystem::file_time_type::clock::now();
  const auto log_of = [&](const char* run) {
    return dir.path(fmt::format("out/{}/{}", run, kRunLogFile));
  };
  std::filesystem::last_write_time(log_of("20260101"), now - std::chrono::hours(1));
  std::filesystem::last_write_time(log_of("20260102"), now);
  const Finished f = run_ballast({"report", dir.path("out")});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(read_whole(dir.path("out/20260102/report.html")), HasSubstr("20260102"));
  EXPECT_FALSE(std::filesystem::exists(dir.path("out/20260101/report.html")));
  dir.write("nothing/else", "");
  const Finished empty = run_ballast({"report", dir.path("nothing")});
  EXPECT_EQ(empty.exit_code, 4);
  EXPECT_THAT(empty.err, HasSubstr("holds no run"));
}

TEST(ReportCommand, MakesThePageOfACrashedRunFromItsLog) {
  const TempDir dir;
  {
    RunLog log(dir.path(std::string(kRunLogFile)), 0);
    RunInfo info;
    info.title = "a crashed run";
    log.run(info);
    StepRecord step;
    step.step = 1;
    step.loss = 0.5;
    log.step(step);
  }
  const std::string log = read_whole(dir.path(std::string(kRunLogFile)));
  dir.write(std::string(kRunLogFile), log + "{\"kind\":\"step\",\"st");
  const Finished f = run_ballast({"report", dir.path()});
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(read_whole(dir.path("report.html")),
              AllOf(HasSubstr("a crashed run"), HasSubstr("<svg"), Not(HasSubstr("<script"))));
  EXPECT_EQ(run_ballast({"report", dir.write("x.jsonl", "no\n")}).exit_code, 4);
  EXPECT_EQ(run_ballast({"report", "/nonexistent"}).exit_code, 6);
}

}  // namespace
}  // namespace ballast::test
