// `ballast cache` with small random encoders: from media and captions to a dataset to train on.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <random>
#include <regex>

#include "core/to_size.h"
#include "io/media_writer.h"
#include "tests/e2e/background_process.h"
#include "tests/e2e/cache_command.h"
#include "tests/support/small_disk.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CacheCommand, MakesADatasetThatTrains) {
  add_clip("one", 9);
  add_clip("two", 12);
  add_clip("short", 3);
  dir_.write("clips/broken.mp4", "this is no video");
  dir_.write("clips/broken.txt", "a clip");
  std::vector<std::string> strict = command("train");
  strict.push_back("--require_cache");
  const Finished early = run_ballast(strict);
  EXPECT_EQ(early.exit_code, 4);
  EXPECT_THAT(early.err, AllOf(HasSubstr("not cached yet"), HasSubstr("ballast cache")));
  EXPECT_TRUE(cached().empty());

  const Finished f = run_ballast(command("cache"));
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("5 captions encoded, 0 already cached"),
                           HasSubstr("2 clips encoded, 0 already cached"),
                           HasSubstr("short.mp4: too short"), HasSubstr("broken.mp4: ")));
  const auto whole = cached();
  std::vector<std::string> again = command("cache");
  again.push_back("--json");
  const Finished second = run_ballast(again);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("\"clips\": {\"encoded\": 0, \"there\": 2}"));
  EXPECT_EQ(cached(), whole);

  const Finished trained = run_ballast(command("train"));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("finished after 2 steps"));
}

TEST_F(CacheCommand, ALatentThatCannotBeReadIsNotCalledMissing) {
  add_clip("one", 5);
  ASSERT_EQ(run_ballast(command("cache")).exit_code, 0);
  const auto before = cached();
  std::string latent;
  for (const auto& [path, bytes] : before) {
    if (path.find("/latents/") != std::string::npos) latent = path;
  }
  for (const char* name : {"train", "cache"}) {
    const Finished f = run_program(BALLAST_BINARY, command(name), Stdout::captured, [&] {
      ::setenv("LD_PRELOAD", BALLAST_CALL_FAULT, 1);
      ::setenv("BALLAST_FAULT", "read:EIO:1+", 1);
      ::setenv("BALLAST_FAULT_PATH", latent.c_str(), 1);
    });
    EXPECT_EQ(f.exit_code, 6) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr(latent), HasSubstr("Input/output error"),
                             HasSubstr("or remove it")));
  }
  EXPECT_EQ(cached(), before);
}

// caching_batch_size is the most captions that are encoded at once, not the fewest.
TEST_F(CacheCommand, EncodesNoMoreCaptionsAtOnceThanItIsTold) {
  for (const char* name : {"one", "two", "three"}) add_clip(name, 5);
  const std::string text = read_whole(config_);
  const auto at_once = [&](const std::string& line, const std::string& expected) {
    config_ = dir_.write("run.toml", line + text);
    fs::remove_all(dir_.path("clips/cache"));
    const Finished f = run_ballast(command("cache"));
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, HasSubstr(expected)) << line;
    return cached();
  };
  const auto all = at_once("", "4 to encode, 4 at once");  // and the empty one
  EXPECT_EQ(at_once("caching_batch_size = 1\n", "4 to encode, 1 at once"), all);
  EXPECT_EQ(at_once("caching_batch_size = 2\n", "4 to encode, 2 at once"), all);
  EXPECT_EQ(at_once("caching_batch_size = 100\n", "4 to encode, 4 at once"), all);
}

// Advice counts all that the same command takes, the reader of media with it.
TEST_F(CacheCommand, IsToldABudgetThatIsEnough) {
  add_clip("one", 5);
  std::vector<std::string> tight = command("cache");
  tight.insert(tight.end(), {"--ram", "1MB"});
  // Captions come first: they are there already.
  ASSERT_EQ(run_ballast(command("cache")).exit_code, 0);
  std::vector<fs::path> latents;
  for (const auto& f : fs::recursive_directory_iterator(dir_.path("clips/cache"))) {
    if (f.path().filename() == "latents") latents.push_back(f.path());
  }
  ASSERT_EQ(latents.size(), 1u);
  fs::remove_all(latents[0]);
  const Finished refused = run_ballast(tight);
  ASSERT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(" encoding: clips of "));
  std::smatch enough;
  ASSERT_TRUE(
      std::regex_search(refused.err, enough, std::regex("(--gpu \\d+MB )?--ram (\\d+MB): fits: ")))
      << refused.err;
  tight.back() = enough[2].str();
  const Finished f = run_ballast(tight);
  EXPECT_EQ(f.exit_code, 0) << f.err;
}

// A frame of an animated WebP: canvas and one chunk, as a header says them.
std::string animated_webp() {
  const std::string frame = std::string(12, '\0') + std::string("\x28\0\0\0", 4) + "VP8 " +
                            std::string("\4\0\0\0abcd", 8);
  const auto chunk = [](const std::string& name, const std::string& bytes) {
    std::string size;
    for (int i = 0; i < 4; ++i) size += static_cast<char>(bytes.size() >> (8 * i) & 0xff);
    return name + size + bytes + std::string(bytes.size() % 2, '\0');
  };
  const std::string body = "WEBP" + chunk("VP8X", std::string("\2\0\0\0\x1f\0\0\x1f\0\0", 10)) +
                           chunk("ANIM", std::string(6, '\0')) + chunk("ANMF", frame) +
                           chunk("ANMF", frame);
  return chunk("RIFF", body);
}

TEST_F(CacheCommand, LeavesOutWhatCannotBeDecodedAndGoesOn) {
  add_clip("torn", 9);
  const std::string whole = read_whole(dir_.path("clips/torn.mp4"));
  dir_.write("clips/torn.mp4", whole.substr(0, whole.size() * 3 / 4));
  dir_.write("clips/moves.webp", animated_webp());
  dir_.write("clips/moves.txt", "a clip");
  dir_.write("clips/words.png", "this is no image");
  dir_.write("clips/words.txt", "a clip");
  const Finished none = run_ballast(command("cache"));
  EXPECT_EQ(none.exit_code, 4) << none.out << none.err;
  EXPECT_THAT(none.out, AllOf(HasSubstr("3 files skipped:"), HasSubstr("torn.mp4: "),
                              HasSubstr("moves.webp: an animated WebP cannot be decoded"),
                              HasSubstr("words.png: ")));
  EXPECT_THAT(none.err, HasSubstr("no clip is left to train on: 3 media files were left out"));
  EXPECT_EQ(run_ballast(command("cache")).exit_code, 4) << "the second start says it again";

  add_clip("one", 9);
  const Finished f = run_ballast(command("cache"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("1 clips encoded"), HasSubstr("3 files skipped:")));
  const Finished trained = run_ballast(command("train"));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

TEST_F(CacheCommand, KeepsClipsForAVaeThatThenEncodesThem) {
  add_clip("one", 9);
  add_clip("two", 12);
  const std::string latents = config_;
  config_ = dir_.write(
      "vae.toml", fmt::format("output_dir = '{}'\ndataset = '{}'\nepochs = 1\n"
                              "[model]\ntype = 'wan_vae'\ndtype = 'float32'\n"
                              "init = 'random'\n[model.config]\ndim = 2\nz_dim = {}\n"
                              "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                              dir_.path("vaes"), dir_.path("set.toml"), run_.config().out_dim));
  EXPECT_THAT(run_ballast(command("cache")).out, HasSubstr("2 clips cached, 0 already cached"));
  EXPECT_THAT(run_ballast(command("cache")).out, HasSubstr("0 clips cached, 2 already cached"));
  const Finished trained = run_ballast(command("train"));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("finished after 2 steps"));
  std::string file;
  for (const auto& f : fs::recursive_directory_iterator(dir_.path("vaes"))) {
    if (f.path().filename() == "model.safetensors") file = f.path().string();
  }
  ASSERT_FALSE(file.empty());
  std::string text = read_whole(latents);
  text.replace(text.find(dir_.path("vae.safetensors")), dir_.path("vae.safetensors").size(), file);
  config_ = dir_.write("with_vae.toml", text);
  const Finished encoded = run_ballast(command("cache"));
  EXPECT_EQ(encoded.exit_code, 0) << encoded.err;
  EXPECT_THAT(encoded.out, HasSubstr("2 clips encoded, 0 already cached"));
}

// RssAnon + RssShmem of a process, which is what plans count; 0 once it is gone.
std::uint64_t memory_of(pid_t pid) {
  const std::string status = read_whole(fmt::format("/proc/{}/status", pid));
  std::uint64_t kilobytes = 0;
  for (const char* key : {"RssAnon:", "RssShmem:"}) {
    const auto at = status.find(key);
    if (at != std::string::npos) kilobytes += std::stoull(status.substr(at + std::strlen(key)));
  }
  return kilobytes * 1024;
}

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// A file that is written again, even with the same bytes, is another inode: files appear by rename.
TEST_F(CacheCommand, KilledAndStartedAgainEncodesNothingTwice) {
  const int clips = from_environment("BALLAST_CLIPS", 40);
  const int kills = from_environment("BALLAST_KILLS", 4);
  for (int i = 0; i < clips; ++i) add_clip(fmt::format("clip{}", i), 9);
  std::vector<std::string> cache = command("cache");
  cache.push_back("--json");
  const Finished uninterrupted = run_ballast(cache);
  ASSERT_EQ(uninterrupted.exit_code, 0) << uninterrupted.err;
  const std::uint64_t planned = number_after(uninterrupted.out, "\"planned_ram_bytes\": ");
  const auto whole = cached();
  const std::size_t files = whole.size();
  EXPECT_EQ(files, 2 * to_size(clips) + 1);  // the empty caption too
  fs::remove_all(dir_.path("clips/cache"));

  std::map<std::string, ino_t> written;
  std::size_t rewritten = 0;
  const auto look = [&] {
    std::error_code none;
    for (const auto& f : fs::recursive_directory_iterator(dir_.path("clips/cache"), none)) {
      struct stat about = {};
      if (f.path().filename().string().starts_with('.')) continue;
      if (::stat(f.path().c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
      const auto [known, added] = written.emplace(f.path().string(), about.st_ino);
      rewritten += !added && known->second != about.st_ino;
    }
  };
  std::mt19937 random(20);
  std::uint64_t most = 0;
  int killed = 0;
  for (int k = 0; k < kills; ++k) {
    // At any moment within the work that a run has left for each of the kills.
    const std::size_t share = (files - written.size()) / to_size(kills - k + 1);
    const std::size_t until =
        written.size() + std::uniform_int_distribution<std::size_t>(0, 2 * share)(random);
    BackgroundBallast process(cache);
    for (std::size_t there = 0; there < until && !process.finished();) {
      most = std::max(most, memory_of(process.pid()));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      there = 0;
      std::error_code none;
      for (const auto& f : fs::recursive_directory_iterator(dir_.path("clips/cache"), none)) {
        there += f.path().extension() == ".safetensors";
      }
    }
    killed += !process.finished();
    process.send(SIGKILL);
    process.wait();
    look();
  }
  const std::size_t before = written.size();
  const Finished last = run_ballast(cache);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  look();
  EXPECT_EQ(cached(), whole);
  EXPECT_EQ(rewritten, 0u);
  EXPECT_GT(killed, 0);
  const std::uint64_t encoded = number_after(last.out, "\"captions\": {\"encoded\": ") +
                                number_after(last.out, "\"clips\": {\"encoded\": ");
  EXPECT_EQ(before + encoded, files) << last.out;
  EXPECT_LE(most, planned);
  if (clips > 100) {
    fmt::print("{} clips, {} of {} kills hit; {} files, none written twice; memory {} of {}\n",
               clips, killed, kills, files, Bytes{most}, Bytes{planned});
  }
}

TEST_F(CacheCommand, RefusesWhatDoesNotFitBeforeItBegins) {
  add_clip("one", 9);
  std::vector<std::string> small = command("cache");
  small.insert(small.end(), {"--ram", "1MB"});
  const Finished f = run_ballast(small);
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_TRUE(cached().empty());
}

TEST_F(CacheCommand, RefusesWhatItsDiskCannotHold) {
  fs::create_directories(dir_.path("clips/cache"));
  const SmallDisk disk(dir_.path("clips/cache"), "size=4k");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  add_clip("one", 9);
  add_clip("two", 9);
  const Finished f = run_ballast(command("cache"));
  EXPECT_EQ(f.exit_code, 3) << f.err;
  EXPECT_THAT(f.err, AllOf(HasSubstr("more disk space needed in " + dir_.path("clips/cache")),
                           // with the empty caption
                           HasSubstr("the caches of 3 captions and 2 media files take"),
                           HasSubstr("--ignore-limits")));
  EXPECT_TRUE(cached().empty());
}

// What is missing is named, and nothing stands in empty brackets.
TEST(Caching, WithoutAModelSaysWhichFilesItNeeds) {
  const TempDir dir;
  const std::string data = dir.write(
      "d.toml", fmt::format("[general]\nresolution = [64, 64]\n[[datasets]]\nvideo_directory = "
                            "'{0}'\ncache_directory = '{0}/c'\ntarget_frames = [5]\n",
                            dir.path()));
  const Finished none = run_ballast({"cache", "--dataset_config", data});
  EXPECT_EQ(none.exit_code, 4) << none.err;
  EXPECT_THAT(none.err, AllOf(HasSubstr("neither a transformer nor a VAE is given"),
                              HasSubstr("--vae FILE")));
  const Finished absent =
      run_ballast({"cache", "--dataset_config", data, "--dit", "x.safetensors"});
  EXPECT_EQ(absent.exit_code, 4) << absent.err;
  EXPECT_THAT(absent.err, HasSubstr("the transformer x.safetensors does not exist"));
}

}  // namespace
}  // namespace ballast::test
