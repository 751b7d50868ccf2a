#include "train/run/config_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "io/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/config/read_config.h"

namespace ballast::train {
namespace {

constexpr const char* kPlainTables =
    "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
    "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n";

class ConfigHash : public ::testing::Test {
 protected:
  ConfigHash() : training_(support::trainable_config(1)) { training_.add_clips(4, {4, 1, 4, 4}); }

  static std::string of(const std::string& config) {
    return prepare_run(read_config(config), support::small_machine(), Purpose::train).config_hash;
  }
  std::string with(const std::string& top, const std::string& tables = kPlainTables) {
    return of(training_.write_config(top, tables));
  }

  support::TinyTraining training_;
};

TEST_F(ConfigHash, IsTheSameWhereTheResultsAre) {
  const std::string plain = with("epochs = 2");
  EXPECT_EQ(plain.size(), 16u);
  for (const char* top :
       {"epochs = 3", "epochs = 2\nmax_steps = 1", "epochs = 2\nsave_every_n_steps = 1",
        "epochs = 2\ncheckpoint_every_n_epochs = 1", "epochs = 2\nlogging_steps = 7",
        "epochs = 2\nblocks_to_swap = 1", "epochs = 2\nactivation_checkpointing = true",
        "# a remark\nepochs = 2\nkeep_checkpoints = 1"}) {
    EXPECT_EQ(with(top), plain) << top;
  }
  EXPECT_EQ(with("epochs = 2", std::string(kPlainTables) +
                                   "[memory]\nram = '2GB'\npolicy = 'stream1'\ndevice = 'cpu'\n"),
            plain);
}

TEST_F(ConfigHash, KnowsTheLimitOfNorms) {
  const std::string path = training_.write_config("epochs = 2", kPlainTables);
  const auto limited = [&](double most) {
    TrainConfig c = read_config(path);
    c.adapter.max_norm = most;
    return prepare_run(std::move(c), support::small_machine(), Purpose::train).config_hash;
  };
  EXPECT_EQ(limited(0), of(path));
  EXPECT_EQ((std::set<std::string>{limited(0), limited(1), limited(2)}.size()), 3u);
}

TEST_F(ConfigHash, DiffersWhereTheResultsMay) {
  std::set<std::string> all = {with("epochs = 2")};
  const auto differs = [&](const std::string& top, const std::string& tables = kPlainTables) {
    EXPECT_TRUE(all.insert(with(top, tables)).second) << top << "\n" << tables;
  };
  differs("epochs = 2\nseed = 1");
  differs("epochs = 2\ngradient_accumulation_steps = 2");
  differs("epochs = 2\nmicro_batch_size_per_gpu = 2");
  differs("epochs = 2\ngradient_clipping = 0.5");
  differs("epochs = 2\nhuber_delta = 0.1");
  differs("epochs = 2\nlr_scheduler = 'linear'");
  differs("epochs = 3\nlr_scheduler = 'linear'");
  differs("epochs = 2\nwarmup_steps = 2");
  differs("epochs = 2\nsave_dtype = 'bfloat16'");
  differs("epochs = 2", "shift = 3\n" + std::string(kPlainTables));
  differs("epochs = 2", "min_t = 0.1\n" + std::string(kPlainTables));
  differs("epochs = 2", "transformer_dtype = 'float8'\n" + std::string(kPlainTables));
  const auto optimizer = [](const std::string& lines, int rank = 4) {
    return fmt::format("[adapter]\ntype = 'lora'\nrank = {}\ndtype = 'float32'\n[optimizer]\n{}",
                       rank, lines);
  };
  differs("epochs = 2", optimizer("type = 'adamw'\nlr = 1e-3\n", 8));
  differs("epochs = 2", optimizer("type = 'adamw'\nlr = 2e-3\n"));
  differs("epochs = 2", optimizer("type = 'adamw'\nlr = 1e-3\nbetas = [0.9, 0.99]\n"));
  differs("epochs = 2", optimizer("type = 'adamw'\nlr = 1e-3\nweight_decay = 0.1\n"));
  differs("epochs = 2", optimizer("type = 'adamw'\nlr = 1e-3\nema_decay = 0.9\n"));
  differs("epochs = 2", optimizer("type = 'stableadamw'\nlr = 1e-3\n"));
  differs("epochs = 2", "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n");
  training_.add_clips(1, {4, 1, 4, 4}, "another");
  differs("epochs = 2");
}

TEST_F(ConfigHash, KnowsWhatADatasetsFileDoesAndNotWhereThingsLie) {
  const test::TempDir dir;
  const auto with_file = [&](const std::string& lines, const std::string& folder) {
    const std::string dataset =
        dir.write("set.toml", fmt::format("{}[[directory]]\npath = '{}'\n", lines, folder));
    const std::string config = training_.write_config("epochs = 2");
    std::string text = test::read_whole(config);
    const std::string before = fmt::format("dataset = '{}'", training_.path("clips"));
    text.replace(text.find(before), before.size(), fmt::format("dataset = '{}'", dataset));
    std::ofstream(config) << text;
    return of(config);
  };
  const std::string here = with_file("resolutions = [32]\n", training_.path("clips"));
  std::filesystem::create_directory(dir.path("elsewhere"));
  std::filesystem::copy(training_.path("clips"), dir.path("elsewhere/clips"),
                        std::filesystem::copy_options::recursive);
  EXPECT_EQ(with_file("# moved\nresolutions = [32]\n", dir.path("elsewhere/clips")), here);
  EXPECT_NE(with_file("resolutions = [32]\nnum_repeats = 2\n", training_.path("clips")), here);
}

TEST_F(ConfigHash, IsNotMadeOfADatasetFileThatCannotBeRead) {
  const PreparedRun run = prepare_run(read_config(training_.write_config("epochs = 2")),
                                      support::small_machine(), Purpose::train);
  TrainConfig c = run.config;
  EXPECT_EQ(config_hash(c, run.schedule, *run.dataset), run.config_hash);
  c.dataset.config = "/proc/self/mem";  // the kernel answers EIO
  EXPECT_FAILS(config_hash(c, run.schedule, *run.dataset), ErrorCode::io, "Input/output error");
}

TEST_F(ConfigHash, StandsInTheFilesOfARun) {
  const std::string config = training_.write_config();
  const TrainOutcome done = support::train_in_process(config);
  const SafetensorsFile lora =
      SafetensorsFile::open(done.folder + "/epoch1/adapter_model.safetensors");
  EXPECT_EQ(lora.metadata().at("ballast.config_hash"), of(config));
}

}  // namespace
}  // namespace ballast::train
