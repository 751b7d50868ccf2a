#include "report/watch/routes.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "report/watch/page_assets.h"
#include "tests/report/watch/watched_run.h"
#include "tests/support/errors.h"

namespace ballast::watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST(WatchRequest, EscapesAreUndoneOnce) {
  EXPECT_EQ(unescaped("a%20b%2e%2E", false), "a b..");
  EXPECT_EQ(unescaped("a+b", true), "a b");
  EXPECT_EQ(unescaped("a+b", false), "a+b");
  for (const char* bad : {"%", "%2", "%zz", "a%00b", "%0a", "%7f"}) {
    EXPECT_EQ(unescaped(bad, false), std::nullopt) << bad;
  }
}

TEST(WatchRequest, FindsValuesInQueriesAndCookies) {
  EXPECT_EQ(query_value("/x?name=a%26b&from=7", "name"), "a&b");
  EXPECT_EQ(query_value("/x?name=a&from=7", "from"), "7");
  EXPECT_EQ(query_value("/x?names=a", "name"), std::nullopt);
  EXPECT_EQ(query_value("/x", "name"), std::nullopt);
  EXPECT_EQ(cookie_value("a=1; ballast=2;b=3", "ballast"), "2");
  EXPECT_EQ(cookie_value("xballast=2", "ballast"), "");
}

TEST(WatchRequest, KnowsHosts) {
  EXPECT_EQ(host_name("localhost:8080"), "localhost");
  EXPECT_EQ(host_name("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(host_name("[::1]:8080"), "::1");
  for (const char* bad : {"", "[::1", "localhost:80x", "localhost:", "[::1]x"}) {
    EXPECT_EQ(host_name(bad), "") << bad;
  }
}

TEST(WatchRequest, ReadsOneRange) {
  const auto range = [](const char* text, std::uint64_t size) {
    const auto r = byte_range(text, size);
    return r ? std::vector<std::uint64_t>{r->begin, r->bytes} : std::vector<std::uint64_t>{};
  };
  EXPECT_THAT(range("bytes=0-9", 100), ElementsAre(0, 10));
  EXPECT_THAT(range("bytes=90-", 100), ElementsAre(90, 10));
  EXPECT_THAT(range("bytes=-10", 100), ElementsAre(90, 10));
  EXPECT_THAT(range("bytes=-1000", 100), ElementsAre(0, 100));
  EXPECT_THAT(range("bytes=0-1000", 100), ElementsAre(0, 100));
  for (const char* bad : {"bytes=100-", "bytes=5-4", "bytes=0-1,3-4", "bytes=-", "bytes=-0",
                          "lines=0-1", "bytes=0-18446744073709551616", "bytes=a-b", ""}) {
    EXPECT_EQ(byte_range(bad, 100), std::nullopt) << bad;
  }
  EXPECT_EQ(byte_range("bytes=0-0", 0), std::nullopt);
}

TEST(WatchSecurity, WithoutTheTokenNothingIsShown) {
  const WatchedRun run;
  run.log_steps(1);
  for (const char* target : {"/", "/app.js", "/api/runs", "/api/run", "/api/plan", "/events",
                             "/previews/a.png", "/metrics", "/healthz", "/nothing"}) {
    EXPECT_EQ(run.get(target, {.cookie = "ballast=wrong"}).status, 403) << target;
    EXPECT_EQ(run.get(target, {.cookie = "other=1"}).status, 403) << target;
  }
  EXPECT_EQ(run.get("/?token=0123").status, 403);
}

TEST(WatchSecurity, TokenBecomesACookieAndACleanAddress) {
  const WatchedRun run;
  const WatchAnswer a = run.get(std::string("/?token=") + kToken, {.cookie = "x=1"});
  EXPECT_EQ(a.status, 303);
  EXPECT_EQ(header_of(a, "Location"), "/");
  EXPECT_EQ(header_of(a, "Set-Cookie"),
            std::string("ballast=") + kToken + "; Path=/; HttpOnly; SameSite=Strict");
  EXPECT_THAT(a.body, Not(HasSubstr(kToken)));
}

TEST(WatchSecurity, BearerIsForToolsAlone) {
  const WatchedRun run;
  run.log_steps(1);
  const std::string bearer = std::string("Bearer ") + kToken;
  const WatchRequest tool = {.cookie = "x=1", .authorization = bearer};
  EXPECT_EQ(run.get("/metrics", tool).status, 200);
  EXPECT_EQ(run.get("/healthz", tool).status, 200);
  EXPECT_EQ(run.get("/api/run", tool).status, 403);
}

TEST(WatchSecurity, OtherHostNamesAreRefused) {
  const WatchedRun run;
  for (const char* host : {"evil.example", "127.0.0.1.evil.example", "localhost.", "\x01", " "}) {
    EXPECT_EQ(run.get("/", {.host = host}).status, 421) << host;
    EXPECT_EQ(run.get(std::string("/?token=") + kToken, {.host = host}).status, 421) << host;
  }
  for (const char* host : {"127.0.0.1:1", "localhost", "[::1]:8080"}) {
    EXPECT_EQ(run.get("/", {.host = host}).status, 200) << host;
  }
}

TEST(WatchSecurity, OnlyGetAndHeadAreAnswered) {
  const WatchedRun run;
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    const WatchAnswer a = run.get("/", {.method = method});
    EXPECT_EQ(a.status, 405) << method;
    EXPECT_EQ(header_of(a, "Allow"), "GET, HEAD");
  }
  EXPECT_EQ(run.get("/", {.method = "HEAD"}).status, 200);
}

TEST(WatchSecurity, EveryAnswerHasItsHeaders) {
  const WatchedRun run;
  run.log_steps(1);
  for (const char* target : {"/", "/app.js", "/api/run", "/events", "/metrics", "/nothing"}) {
    const WatchAnswer a = run.get(target);
    EXPECT_EQ(header_of(a, "Content-Security-Policy"),
              "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src "
              "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
              "'none'");
    EXPECT_EQ(header_of(a, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(header_of(a, "Referrer-Policy"), "no-referrer");
    EXPECT_EQ(header_of(a, "Cache-Control"), "no-store");
    EXPECT_EQ(header_of(a, "Cross-Origin-Resource-Policy"), "same-origin");
    for (const auto& [name, value] : a.headers) {
      EXPECT_FALSE(name.starts_with("Access-Control")) << target;
    }
  }
  EXPECT_EQ(run.get("/", {.cookie = "x=1"}).headers.empty(), false);
}

TEST(WatchSecurity, PageWritesTextAsTextAndLoadsNothingElse) {
  for (const std::string_view asset : {kPageHtml, kPageScript, kPageStyle, kPageIcon}) {
    for (const char* banned :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
          "https:", "<script>", " style=\"", "onclick=\"", "@import"}) {
      EXPECT_EQ(asset.find(banned), std::string_view::npos) << banned;
    }
  }
  EXPECT_LT(kPageScript.size(), 40'000u);
}

TEST(WatchSecurity, OnlyListedFilesAreOpened) {
  const WatchedRun run;
  run.log_steps(1);
  run.write("secret.png", "outside");
  run.write("previews/.hidden.png", "hidden");
  run.write("previews/a.png", "image");
  run.write("previews/unlisted.png", "not in the log");
  run.write("previews/a.txt", "text");
  std::filesystem::create_symlink("../secret.png", run.path("previews/link.png"));
  std::filesystem::create_directory(run.path("previews/folder.png"));
  ASSERT_EQ(::mkfifo(run.path("previews/fifo.png").c_str(), 0600), 0);
  RunLog log(run.log_path(), 1);
  for (const char* name : {"a.png", ".hidden.png", "link.png", "folder.png", "fifo.png", "a.txt",
                           "../secret.png", "gone.png"}) {
    log.event(1, "preview", std::string("previews/") + name + ": a prompt");
  }
  EXPECT_EQ(run.get("/previews/a.png").status, 200);
  for (const char* name :
       {".hidden.png", "link.png", "folder.png", "fifo.png", "a.txt", "../secret.png",
        "%2e%2e/secret.png", "..%2fsecret.png", "gone.png", "unlisted.png", "", "a.png%00"}) {
    EXPECT_EQ(run.get(std::string("/previews/") + name).status, 404) << name;
  }
  for (const char* name : {"..", ".", "../run", "previews", "nothing"}) {
    EXPECT_EQ(run.get(std::string("/api/run?name=") + name).status, 404) << name;
  }
}

TEST(WatchSecurity, LogThatIsALinkIsNotRead) {
  const WatchedRun run;
  run.write("elsewhere", "{}");
  std::filesystem::create_symlink("elsewhere", run.log_path());
  EXPECT_EQ(run.get("/api/run").status, 404);
}

TEST(WatchRoutes, PageIsThere) {
  const WatchedRun run;
  EXPECT_EQ(run.get("/").asset, kPageHtml);
  EXPECT_EQ(header_of(run.get("/app.js"), "Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(header_of(run.get("/favicon.svg"), "Content-Type"), "image/svg+xml");
  EXPECT_THAT(std::string(run.get("/plan.js").asset), HasSubstr("function showPlans"));
  EXPECT_EQ(run.get("/api/run").status, 404);
  EXPECT_EQ(run.get("/nothing").status, 404);
}

TEST(WatchRoutes, FinishedRunIsTold) {
  const WatchedRun run;
  run.log_steps(3);
  run.leave_record(Phase::finished, 3);
  {
    RunLog log(run.log_path(), 3);
    log.eval(3, "eval0", 0.25);
    log.event(3, "checkpoint", "here");
    log.event(3, "preview", "previews/a.png: circle");
  }
  const Json j = Json::parse(run.get("/api/run").body);
  EXPECT_EQ(j["name"], "run");
  EXPECT_EQ(j["state"]["state"], "finished");
  EXPECT_EQ(j["state"]["planned"]["ram"], 400);
  EXPECT_EQ(j["info"]["title"], "tiny </script><b>");
  EXPECT_EQ(j["steps"].size(), 3u);
  EXPECT_EQ(j["steps"][2].size(), j["columns"].size());
  EXPECT_EQ(j["steps"][1][3], 0.5);  // loss
  EXPECT_EQ(j["evals"][0]["value"], 0.25);
  EXPECT_EQ(j["events"][0]["event"], "checkpoint");
  EXPECT_EQ(j["previews"][0]["text"], "previews/a.png: circle");
  EXPECT_EQ(j["offset"], std::filesystem::file_size(run.log_path()));
  const Json runs = Json::parse(run.get("/api/runs").body);
  EXPECT_EQ(runs["runs"][0]["name"], "run");
  EXPECT_EQ(runs["runs"][0]["state"], "finished");
}

TEST(WatchRoutes, ProcessThatIsGoneIsDeadWithAReason) {
  const WatchedRun run;
  run.log_steps(3);
  run.leave_record(Phase::step, 3);
  const Json j = Json::parse(run.get("/api/run").body);
  EXPECT_EQ(j["state"]["state"], "dead");
  EXPECT_THAT(j["state"]["cause"].get<std::string>(), HasSubstr("the process was"));
  EXPECT_FALSE(j["state"]["findings"].empty());
  const WatchAnswer health = run.get("/healthz");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("dead"));
}

TEST(WatchRoutes, RunInProgressIsTraining) {
  const WatchedRun run;
  run.log_steps(3);
  FlightRecorder record(run.path(std::string(kFlightFile)), run.start());
  record.update(state_of(Phase::load, 0));
  EXPECT_EQ(Json::parse(run.get("/api/run").body)["state"]["state"], "loading");
  record.update(state_of(Phase::step, 3));
  EXPECT_EQ(Json::parse(run.get("/api/run").body)["state"]["state"], "training");
  EXPECT_EQ(run.get("/healthz").status, 200);
  EXPECT_TRUE(run.routes().any_running());
}

TEST(WatchRoutes, IncompleteLastLineIsLeftForLater) {
  const WatchedRun run;
  run.log_steps(2);
  const auto whole = std::filesystem::file_size(run.log_path());
  std::ofstream(run.log_path(), std::ios::app) << "{\"kind\":\"step\",\"ti";
  const Json j = Json::parse(run.get("/api/run").body);
  EXPECT_EQ(j["steps"].size(), 2u);
  EXPECT_EQ(j["unreadable"], 0);
  EXPECT_EQ(j["offset"], whole);
}

TEST(WatchRoutes, ResumedRunHasEachStepOnce) {
  const WatchedRun run;
  run.log_steps(5);
  WatchRoutes routes = run.routes();
  const std::string cookie = std::string("ballast=") + kToken;
  const WatchRequest request = {
      .method = "GET", .target = "/api/run", .host = "localhost", .cookie = cookie};
  EXPECT_EQ(Json::parse(routes.answer(request).body)["steps"].size(), 5u);
  {
    RunLog log(run.log_path(), 3);
    log.run(info_of("resumed"), 3);
    for (std::int64_t s = 4; s <= 9; ++s) log.step(step_of(s));  // longer than it was
  }
  const Json j = Json::parse(routes.answer(request).body);
  EXPECT_EQ(j["starts"], 2);
  ASSERT_EQ(j["steps"].size(), 9u);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(j["steps"][i][0], i + 1);
}

TEST(WatchRoutes, ManyStepsAreFewPoints) {
  const WatchedRun run;
  constexpr std::int64_t kSteps = 20'000;
  std::string log;
  for (std::int64_t s = 1; s <= kSteps; ++s) {
    log +=
        fmt::format("{{\"kind\":\"step\",\"time\":{0},\"step\":{0},\"loss\":{1},\"seconds\":1}}\n",
                    s, s == 777 ? 50 : 1);
  }
  run.write(std::string(kRunLogFile), log);
  const Json j = Json::parse(run.get("/api/run").body);
  EXPECT_LE(j["steps"].size(), static_cast<std::size_t>(kMaxSteps));
  EXPECT_GT(j["steps"].size(), static_cast<std::size_t>(kMaxSteps / 2));
  std::int64_t next = 1;
  double most = 0;
  for (const Json& s : j["steps"]) {
    EXPECT_EQ(s[0], next);
    next = s[1].get<std::int64_t>() + 1;
    most = std::max(most, s[5].get<double>());
  }
  EXPECT_EQ(next, kSteps + 1);
  EXPECT_EQ(most, 50);
}

TEST(WatchRoutes, AnythingInTheLogGivesJson) {
  const WatchedRun run;
  run.write(
      std::string(kRunLogFile),
      "not json\n\n{\"kind\":\"step\",\"step\":1,\"loss\":null}\n{\"kind\":\"run\",\"step\":0,"
      "\"info\":{\"title\":7,\"config\":\"k\xff\"}}\n[]\n\x01\n");
  const Json j = Json::parse(run.get("/api/run").body);
  EXPECT_EQ(j["unreadable"], 4);  // the run line is no UTF-8
  EXPECT_EQ(j["steps"].size(), 1u);
  EXPECT_TRUE(j["steps"][0][3].is_null());
}

TEST(WatchRoutes, RunsOfAFolderAreListed) {
  const test::TempDir dir;
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directory(dir.path(name));
    RunLog log(dir.path(name) + "/" + std::string(kRunLogFile), 0);
    log.run(info_of(std::string("run ") + name));
  }
  std::filesystem::create_directory(dir.path("no_run"));
  std::filesystem::last_write_time(
      dir.path("a") + "/" + std::string(kRunLogFile),
      std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  WatchRoutes routes({.folder = dir.path(""), .token = kToken});
  const std::string cookie = std::string("ballast=") + kToken;
  const auto get = [&](std::string_view target) {
    return Json::parse(
        routes.answer({.method = "GET", .target = target, .host = "localhost", .cookie = cookie})
            .body);
  };
  const Json runs = get("/api/runs")["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1]["name"], "a");  // written last
  EXPECT_EQ(get("/api/run")["info"]["title"], "run a");
  EXPECT_EQ(get("/api/run?name=b")["info"]["title"], "run b");
}

TEST(WatchRoutes, PreviewsAreHandedOutInParts) {
  const WatchedRun run;
  run.write("previews/s.mp4", "0123456789");
  run.log_steps(1);
  RunLog(run.log_path(), 1).event(1, "preview", "previews/s.mp4: a circle");
  WatchAnswer whole = run.get("/previews/s.mp4");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(header_of(whole, "Content-Type"), "video/mp4");
  EXPECT_EQ(read_at(whole.file, whole.range.begin, whole.range.bytes), "0123456789");
  WatchAnswer part = run.get("/previews/s.mp4", {.range = "bytes=2-4"});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(header_of(part, "Content-Range"), "bytes 2-4/10");
  EXPECT_EQ(read_at(part.file, part.range.begin, part.range.bytes), "234");
  const WatchAnswer two = run.get("/previews/s.mp4", {.range = "bytes=0-1,3-4"});
  EXPECT_EQ(two.status, 416);
  EXPECT_EQ(header_of(two, "Content-Range"), "bytes */10");
}

TEST(WatchRoutes, PlanAndReportAreTheRunsFiles) {
  const WatchedRun run;
  run.log_steps(1);
  EXPECT_EQ(run.get("/api/plan").status, 404);
  EXPECT_EQ(run.get("/report.html").status, 404);
  run.write("plan.json", "{\"seconds_per_step\":2.5,\"map\":{\"seconds_per_step\":7}}");
  run.write("report.html", "<!doctype html>");
  const WatchAnswer plan = run.get("/api/plan");
  EXPECT_EQ(plan.status, 200);
  EXPECT_THAT(read_at(plan.file, 0, plan.range.bytes), HasSubstr("2.5"));
  EXPECT_THAT(header_of(run.get("/report.html"), "Content-Security-Policy"),
              Not(HasSubstr("script-src")));
}

TEST(WatchMetrics, HaveTheNumbersOfTheRun) {
  const WatchedRun run;
  run.log_steps(3);
  run.leave_record(Phase::step, 3);
  run.write("plan.json", "{\"seconds_per_step\":2.5,\"map\":{\"seconds_per_step\":7}}");
  const WatchAnswer a = run.get("/metrics");
  EXPECT_EQ(header_of(a, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"ballast_step{run=\"run\",rank=\"0\"} 3\n",
        "ballast_steps_total{run=\"run\",rank=\"0\"} 100\n",
        "ballast_step_predicted_seconds{run=\"run\",rank=\"0\"} 2.5\n",
        "ballast_lane_seconds{run=\"run\",rank=\"0\",lane=\"upload\"} 0.5\n",
        "ballast_memory_bytes{run=\"run\",rank=\"0\",tier=\"ram\",kind=\"planned\"} 400\n",
        "ballast_alive{run=\"run\",rank=\"0\"} 0\n", "# TYPE ballast_loss gauge\n",
        "title=\"tiny </script><b>\""}) {
    EXPECT_THAT(a.body, HasSubstr(line));
  }
  // One description of each name, before its lines.
  EXPECT_EQ(a.body.find("# TYPE ballast_memory_bytes"),
            a.body.rfind("# TYPE ballast_memory_bytes"));
}

TEST(WatchMetrics, LabelsAreEscaped) {
  EXPECT_EQ(prometheus_label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
  EXPECT_EQ(prometheus_label("v\xff"), "v\xEF\xBF\xBD");
}

TEST(WatchHealth, StandsStillWhenTheLogDoes) {
  const WatchedRun run;
  run.log_steps(3);
  FlightRecorder record(run.path(std::string(kFlightFile)), run.start());
  record.update(state_of(Phase::step, 3));
  // The log's last change was long before the time of these routes.
  std::filesystem::last_write_time(
      run.log_path(), std::filesystem::file_time_type::clock::from_sys(
                          std::chrono::sys_seconds(std::chrono::seconds(1'700'000'000))));
  const WatchAnswer a = run.get("/healthz");
  EXPECT_EQ(a.status, 503);
  EXPECT_THAT(a.body, HasSubstr("200 s old"));
}

}  // namespace
}  // namespace ballast::watch_test
