#include "train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <random>

#include "core/checksum.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/train/sample_run.h"

namespace ballast::train {
namespace {

using ballast::test::read_whole;
using ballast::test::TempDir;
using sample::names_in;
using sample::quick_disk;
using sample::SampleRun;

TEST(TrainingCheckpoint, ComesBackToTheBit) {
  const TempDir run;
  SampleRun before(7);
  const std::string folder = before.save(run.path());
  EXPECT_EQ(folder, run.path("checkpoints/step-00000007"));

  const CheckpointSearch search = find_checkpoint(run.path());
  ASSERT_TRUE(search.found);
  EXPECT_EQ(search.notes, std::vector<std::string>{});
  EXPECT_EQ(search.found->folder, folder);
  SampleRun after(1);
  ASSERT_FALSE(after == before);
  after.state = search.found->state;
  load_checkpoint(folder, after.loaded());
  EXPECT_TRUE(after == before);
}

TEST(TrainingCheckpoint, HasTheWrittenLayout) {
  const TempDir run(quick_disk());
  SampleRun(123).save(run.path());
  EXPECT_EQ(names_in(run.path("checkpoints")), (std::set<std::string>{"latest", "step-00000123"}));
  EXPECT_EQ(
      names_in(run.path("checkpoints/step-00000123")),
      (std::set<std::string>{"COMMITTED", "manifest.json", "state.safetensors", "trainer.json"}));
  EXPECT_EQ(read_whole(run.path("checkpoints/latest")), "step-00000123");
}

TEST(TrainingCheckpoint, KeepsNumbersThatJsonHasNoWordFor) {
  const double inf = std::numeric_limits<double>::infinity();
  TrainerState state;
  state.numbers = {{"a", inf}, {"b", -inf}, {"c", -0.0}, {"d", 0.1}, {"e", 5e-324}};
  EXPECT_EQ(parse_trainer_state({.text = to_json(state), .path = "t", .rule = "r"}), state);
  state.numbers = {{"n", std::numeric_limits<double>::quiet_NaN()}};
  const TrainerState back = parse_trainer_state({.text = to_json(state), .path = "t", .rule = "r"});
  EXPECT_TRUE(std::isnan(back.numbers.at("n")));
}

TEST(TrainingCheckpoint, RefusesAStateWithMissingOrUnknownFields) {
  const std::string good = to_json(TrainerState{});
  const auto parse = [](const std::string& text) {
    return parse_trainer_state({.text = text, .path = "trainer.json", .rule = "r"});
  };
  std::string text = good;
  text.replace(text.find("\"seed\""), 6, "\"sead\"");
  EXPECT_FAILS(parse(text), ErrorCode::input, "does not know");
  text = good;
  text.erase(text.find("  \"seed\""), std::string("  \"seed\": 0,\n").size());
  EXPECT_FAILS(parse(text), ErrorCode::input, "the field seed is missing");
  text = good;
  text.replace(text.find("\"step\": 0"), 9, "\"step\":-1");
  EXPECT_FAILS(parse(text), ErrorCode::input, "negative");
}

TEST(TrainingCheckpoint, TakesAndGivesPiecesForStateOutsideHostMemory) {
  const TempDir run(quick_disk());
  std::vector<std::byte> disk(3'000'000);
  for (std::size_t i = 0; i < disk.size(); ++i) disk[i] = static_cast<std::byte>(i * 7 >> 3);
  const Shape shape{static_cast<std::int64_t>(disk.size())};
  const SavedTensor saved{
      .name = "m", .dtype = DType::u8, .shape = shape, .source = [&](const ByteSink& sink) {
        sink(std::span(disk).first(1'000'001));
        sink(std::span(disk).subspan(1'000'001));
      }};
  const std::string folder = save_checkpoint(run.path(), {}, {&saved, 1});
  std::vector<std::byte> back;
  const LoadedTensor loaded{.name = "m",
                            .dtype = DType::u8,
                            .shape = shape,
                            .data = nullptr,
                            .sink = [&](std::span<const std::byte> piece) {
                              back.insert(back.end(), piece.begin(), piece.end());
                            }};
  load_checkpoint(folder, {&loaded, 1});
  EXPECT_TRUE(back == disk);
}

TEST(TrainingCheckpoint, NamesTheTensorThatDiffersAndWritesNothing) {
  const TempDir run(quick_disk());
  SampleRun saved(3);
  const std::string folder = saved.save(run.path());
  SampleRun into(1);
  const SampleRun untouched = into;
  const auto load_with = [&](auto change) {
    auto tensors = into.loaded();
    change(tensors);
    load_checkpoint(folder, tensors);
  };
  EXPECT_FAILS(load_with([](auto& t) { t[3].name = "scales"; }), ErrorCode::input,
               "tensor scales is not there");
  EXPECT_FAILS(load_with([](auto& t) { t[1].dtype = DType::f16; }), ErrorCode::input,
               "tensor blocks.0.q.lora_A/moment is BF16, expected F16");
  EXPECT_FAILS(load_with([](auto& t) {
                 t[0].shape = {2, 500};
               }),
               ErrorCode::input, "tensor blocks.0.q.lora_A is [500, 2], expected [2, 500]");
  EXPECT_FAILS(load_with([](auto& t) { t.erase(t.begin() + 1); }), ErrorCode::input,
               "tensor blocks.0.q.lora_A/moment is there, but this run has no such tensor");
  EXPECT_TRUE(into == untouched);

  auto weights = into.loaded();
  weights.resize(1);
  load_checkpoint(folder, weights, Unasked::ignore);  // a fresh optimizer
  EXPECT_FALSE(into == untouched);
}

TEST(TrainingCheckpoint, NeedsTheSpaceItAnnounces) {
  const TempDir run(quick_disk());
  SampleRun sample(1, 100'000);
  const Bytes announced = checkpoint_bytes(sample.state, sample.saved());
  std::uint64_t taken = 0;
  for (const auto& f : std::filesystem::directory_iterator(sample.save(run.path()))) {
    taken += (f.file_size() + 4095) / 4096 * 4096;
  }
  EXPECT_GE(announced.count, taken);
  EXPECT_LE(announced.count, taken + 32'768);
}

// A file that changes while it is loaded. A byte that was already read is no damage any more; one
// that is read afterwards is part of the checksum.
TEST(TrainingCheckpoint, VerifiesTheBytesThatItLoads) {
  const TempDir run(quick_disk());
  const std::vector<std::byte> bytes(3 << 20, std::byte{7});
  const Shape shape{static_cast<std::int64_t>(bytes.size())};
  std::vector<SavedTensor> saved;
  for (const char* name : {"a", "b"}) {
    saved.push_back(
        {.name = name, .dtype = DType::u8, .shape = shape, .source = [&](const ByteSink& sink) {
           sink(bytes);
         }});
  }
  const std::string folder = save_checkpoint(run.path(), {}, saved);
  const std::string path = folder + "/" + kStateFile;
  const std::string good = read_whole(path);
  // Flips the byte when the first piece of tensor a arrives.
  const auto load = [&](std::uint64_t flipped) {
    run.write("checkpoints/step-00000000/state.safetensors", good);
    bool done = false;
    std::vector<std::byte> b(bytes.size());
    const LoadedTensor loaded[] = {{.name = "a",
                                    .dtype = DType::u8,
                                    .shape = shape,
                                    .sink =
                                        [&](std::span<const std::byte>) {
                                          if (std::exchange(done, true)) return;
                                          std::fstream file(path, std::ios::in | std::ios::out);
                                          file.seekp(static_cast<std::streamoff>(flipped));
                                          file.put('x');
                                        }},
                                   LoadedTensor::of("b", {b.data(), DType::u8, shape})};
    load_checkpoint(folder, loaded);
    EXPECT_TRUE(b == bytes);
  };
  const std::uint64_t data = good.size() - 2 * bytes.size();
  load(data);      // of the piece that has come
  load(data / 2);  // of the header
  for (const std::uint64_t at : {data + bytes.size() - 1, data + bytes.size(), good.size() - 1}) {
    EXPECT_FAILS(load(at), ErrorCode::input, path);
  }
}

TEST(TrainingCheckpoint, NamesBothChecksumsAndFallsBackToAnOlderOne) {
  const TempDir run(quick_disk());
  SampleRun(1).save(run.path());
  SampleRun(2).save(run.path());
  const std::string newest = SampleRun(3).save(run.path());
  const auto find = [&](std::int64_t before) {
    return find_checkpoint(run.path(), {}, Verify::sizes, before).found;
  };
  auto found = find(100);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->folder, newest);
  for (const int step : {2, 3}) {  // after the search
    const std::string name = fmt::format("checkpoints/step-0000000{}/state.safetensors", step);
    std::string state = read_whole(run.path(name));
    const std::string sum = checksum_text(state);
    state.back() = static_cast<char>(state.back() ^ 1);
    run.write(name, state);
    SampleRun into;
    const auto error = ballast::test::error_of([&] {
      load_checkpoint(std::filesystem::path(run.path(name)).parent_path(), into.loaded());
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::input);
    EXPECT_THAT(error->what(), testing::HasSubstr(run.path(name)));
    EXPECT_THAT(error->what(), testing::HasSubstr(sum));
    EXPECT_THAT(error->what(), testing::HasSubstr(checksum_text(state)));
  }
  SampleRun into;
  const auto load = [&](const FoundCheckpoint& from) {
    load_checkpoint(from.folder, into.loaded());
    into.state = from.state;
  };
  EXPECT_EQ(load_or_older(*found, load, find).state.step, 1);
  EXPECT_TRUE(into == SampleRun(1));
  std::filesystem::remove_all(run.path("checkpoints/step-00000001"));
  EXPECT_FAILS(load_or_older(*found, load, find), ErrorCode::input,
               "step-00000002/state.safetensors: its bytes are not those that were written");
}

TEST(TrainingCheckpoint, ReadsATensorThatNobodyAskedForToVerifyIt) {
  const TempDir run(quick_disk());
  SampleRun sample(3);
  const std::string folder = sample.save(run.path());
  const std::string name = "checkpoints/step-00000003/state.safetensors";
  std::string state = read_whole(run.path(name));
  state[state.size() - 100] = static_cast<char>(state[state.size() - 100] ^ 16);  // of the moment
  run.write(name, state);
  SampleRun into;
  auto weights = into.loaded();
  weights.resize(1);
  EXPECT_FAILS(load_checkpoint(folder, weights, Unasked::ignore), ErrorCode::input, "the checksum");
}

// Several tensors on one piece of memory stand for much more of it.
TEST(TrainingCheckpoint, SavesAndLoadsWithoutCopies) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir run(quick_disk());
  const std::vector<float> memory(4 << 20, 1.5f);  // 16 MiB
  std::vector<SavedTensor> tensors;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(SavedTensor::of(
        fmt::format("t{}", i),
        {reinterpret_cast<const std::byte*>(memory.data()), DType::f32, {4 << 20}}));
  }
  const TrainerState state;
  allocation_hook::arm();
  const std::string folder = save_checkpoint(run.path(), state, tensors);
  const auto seen = allocation_hook::disarm();
  EXPECT_GT(std::filesystem::file_size(folder + "/state.safetensors"), 192u << 20);
  EXPECT_LT(seen.bytes(), 1 << 20);  // of all requests, freed ones too
  allocation_hook::arm();
  verify_checkpoint(folder, Verify::checksums);
  EXPECT_LT(allocation_hook::disarm().bytes(), 2 << 20);
  std::vector<float> into(memory.size());
  std::vector<LoadedTensor> loaded;
  for (const SavedTensor& t : tensors) {
    loaded.push_back(LoadedTensor::of(
        t.name, {reinterpret_cast<std::byte*>(into.data()), DType::f32, {4 << 20}}));
  }
  allocation_hook::arm();
  load_checkpoint(folder, loaded);
  EXPECT_LT(allocation_hook::disarm().bytes(), 1 << 20);
}

// Rotation and the search.

void save_steps(const std::string& run, std::initializer_list<std::int64_t> steps) {
  for (const std::int64_t step : steps) SampleRun(step).save(run);
}

TEST(TrainingCheckpoint, RotationKeepsTheNewestWholeOnes) {
  const TempDir run(quick_disk());
  save_steps(run.path(), {5, 10, 15, 20, 100});
  std::filesystem::remove(run.path("checkpoints/step-00000020/COMMITTED"));
  rotate_checkpoints(run.path(), 2);
  EXPECT_EQ(names_in(run.path("checkpoints")),
            (std::set<std::string>{"latest", "step-00000100", "step-00000020", "step-00000015"}));
  rotate_checkpoints(run.path(), 0);  // never the last one
  EXPECT_EQ(names_in(run.path("checkpoints")), (std::set<std::string>{"latest", "step-00000100"}));
}

TEST(TrainingCheckpoint, ReplacesTheSameStep) {
  const TempDir run(quick_disk());
  SampleRun(5).save(run.path());
  SampleRun again(5);
  again.state.wall_seconds = 99;
  again.save(run.path());
  EXPECT_EQ(names_in(run.path("checkpoints")), (std::set<std::string>{"latest", "step-00000005"}));
  EXPECT_EQ(find_checkpoint(run.path()).found->state.wall_seconds, 99);
}

TEST(TrainingCheckpoint, NewestGoodOneIsFoundWhateverLatestSays) {
  const TempDir run(quick_disk());
  save_steps(run.path(), {8, 9, 10, 11, 100'000'000});
  std::filesystem::remove_all(run.path("checkpoints/step-100000000/state.safetensors"));
  run.write("checkpoints/step-00000011/trainer.json", "{}");
  run.write("checkpoints/latest", "step-00000008");
  run.write("checkpoints/step-00000012.tmp-1-00/COMMITTED", "x");
  run.write("checkpoints/step-00000013.deleting/COMMITTED", "x");
  run.write("checkpoints/step-14/COMMITTED", "x");
  const CheckpointSearch search = find_checkpoint(run.path());
  ASSERT_TRUE(search.found);
  EXPECT_EQ(search.found->state.step, 10);
  ASSERT_EQ(search.notes.size(), 2u);
  EXPECT_THAT(search.notes[0], testing::HasSubstr("step-100000000 was skipped"));
  EXPECT_THAT(search.notes[0], testing::HasSubstr("No such file"));
  EXPECT_THAT(search.notes[1], testing::HasSubstr("step-00000011 was skipped"));
  EXPECT_THAT(search.notes[1], testing::HasSubstr("has 2 bytes"));
}

TEST(TrainingCheckpoint, SaysThatThereIsNone) {
  const TempDir run(quick_disk());
  EXPECT_FALSE(find_checkpoint(run.path()).found);
  EXPECT_TRUE(find_checkpoint(run.path()).notes.empty());
  save_steps(run.path(), {1});
  std::filesystem::rename(run.path("checkpoints/step-00000001"),
                          run.path("checkpoints/step-00000002"));
  const CheckpointSearch search = find_checkpoint(run.path());
  EXPECT_FALSE(search.found);
  ASSERT_EQ(search.notes.size(), 1u);
  EXPECT_THAT(search.notes[0], testing::HasSubstr("the manifest is of step 1"));
}

// Damage.

class Damage : public testing::TestWithParam<const char*> {};

TEST_P(Damage, IsFoundWhereverAByteFlips) {
  const TempDir run(quick_disk());
  SampleRun sample(4, 200);
  const std::string folder = sample.save(run.path());
  const std::string name = std::string("checkpoints/step-00000004/") + GetParam();
  const std::string good = read_whole(run.path(name));
  for (std::size_t at = 0; at<good.size(); at += good.size()> 600 ? 7 : 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    run.write(name, bad);
    ASSERT_FALSE(find_checkpoint(run.path()).found) << GetParam() << " byte " << at;
    // What a search by sizes accepts is refused when it is loaded.
    const auto found = find_checkpoint(run.path(), {}, Verify::sizes).found;
    SampleRun into(0, 200);
    ASSERT_TRUE(!found || ballast::test::error_of([&] {
      load_checkpoint(found->folder, into.loaded());
    })) << GetParam()
        << " byte " << at;
  }
  run.write(name, good);
  ASSERT_TRUE(find_checkpoint(run.path()).found);
}

TEST_P(Damage, IsFoundWhenTheFileIsCutLongerOrGone) {
  const TempDir run(quick_disk());
  const std::string folder = SampleRun(4, 200).save(run.path());
  const std::string path = folder + "/" + GetParam();
  const std::string good = read_whole(path);
  for (const std::size_t size : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    std::filesystem::resize_file(path, size);
    EXPECT_TRUE(ballast::test::error_of([&] { verify_checkpoint(folder, Verify::sizes); }));
  }
  run.write("checkpoints/step-00000004/" + std::string(GetParam()), good + " ");
  EXPECT_TRUE(ballast::test::error_of([&] { verify_checkpoint(folder, Verify::sizes); }));
  std::filesystem::remove(path);
  EXPECT_TRUE(ballast::test::error_of([&] { verify_checkpoint(folder, Verify::sizes); }));
  std::filesystem::create_directory(path);
  EXPECT_TRUE(ballast::test::error_of([&] { verify_checkpoint(folder, Verify::sizes); }));
}

INSTANTIATE_TEST_SUITE_P(TrainingCheckpoint, Damage,
                         testing::Values("COMMITTED", "manifest.json", "trainer.json",
                                         "state.safetensors"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::erase(name, '.');
                           return name;
                         });

TEST(TrainingCheckpoint, RefusesAManifestThatLeadsElsewhere) {
  const TempDir run(quick_disk());
  const std::string folder = SampleRun(4, 10).save(run.path());
  const std::string good = read_whole(folder + "/manifest.json");
  const auto verify = [&](std::string_view from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    run.write("checkpoints/step-00000004/manifest.json", text);
    run.write("checkpoints/step-00000004/COMMITTED", checksum_text(text));
    verify_checkpoint(folder, Verify::sizes);
  };
  verify("\"p0\"", "\"p1\"");  // the method works: this is a good manifest
  EXPECT_FAILS(verify("trainer.json", "../../secret"), ErrorCode::input, "plain file name");
  EXPECT_FAILS(verify("trainer.json", "other.json"), ErrorCode::input,
               "lists 0 files trainer.json");
  EXPECT_FAILS(verify("\"version\": 1", "\"version\": 2"), ErrorCode::input, "reads version 1");
  EXPECT_FAILS(verify("ballast-checkpoint", "other"), ErrorCode::input, "ballast-checkpoint");
  EXPECT_FAILS(verify("\"step\": 4", "\"step\": 5"), ErrorCode::input, "of step 5");
  EXPECT_FAILS(verify("\"xxh3\": \"", "\"xxh3\": \"g"), ErrorCode::input, "hexadecimal");
  EXPECT_FAILS(verify("\"config_hash\"", "\"nonsense\""), ErrorCode::input, "does not know");
}

}  // namespace
}  // namespace ballast::train
