#include <gmock/gmock.h>

#include "data/dataset.h"
#include "io/checkpoint.h"
#include "models/wan/recognise.h"
#include "tests/e2e/ballast_process.h"

namespace ballast::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Finished make_shapes(std::vector<std::string> arguments) {
  return run_program(BALLAST_MOVING_SHAPES, arguments);
}

std::vector<std::string> tiny(const std::string& folder) {
  return {folder,           "--layers=1",    "--frames=2",        "--side=4",
          "--base-clips=5", "--new-clips=3", "--held-out-clips=2"};
}

TEST(MovingShapes, WritesAModelThatIsRecognised) {
  const TempDir dir;
  ASSERT_EQ(make_shapes(tiny(dir.path("out"))).exit_code, 0);
  const Checkpoint file = Checkpoint::open(dir.path("out/start.safetensors"));
  const auto model = recognise(file, wan::TensorMap(file));
  ASSERT_TRUE(model);
  EXPECT_THAT(model->problems, IsEmpty());
  EXPECT_EQ(model->config.dim, 128);
  EXPECT_EQ(model->config.layers, 1);
  EXPECT_EQ(model->config.out_dim, 16);
}

TEST(MovingShapes, WritesDatasetsThatOpen) {
  const TempDir dir;
  ASSERT_EQ(make_shapes(tiny(dir.path("out"))).exit_code, 0);
  const auto clips = [&](const std::string& set) {
    const auto dataset =
        data::open_dataset({.path = dir.path("out/" + set), .needs = {.text_dim = 64}});
    EXPECT_EQ(dataset->buckets().size(), 1u);
    EXPECT_EQ(dataset->buckets()[0].shape, (data::LatentShape{16, 2, 4, 4}));
    return dataset->samples().size();
  };
  EXPECT_EQ(clips("base_motions"), 5u);
  EXPECT_EQ(clips("new_motion"), 3u);
  EXPECT_EQ(clips("held_out"), 2u);
}

// What the demo's configurations name is what the program writes.
TEST(MovingShapes, WritesWhatTheDemoTrainsOn) {
  const TempDir dir;
  ASSERT_EQ(make_shapes(tiny(dir.path("out"))).exit_code, 0);
  for (const std::string name : {"base", "lora"}) {
    std::string text = read_whole(BALLAST_SOURCE_DIR "/examples/moving_shapes/" + name + ".toml");
    const std::size_t at = text.find("base.safetensors");  // the pre-trained one, by the demo
    if (at != std::string::npos) text.replace(at, 4, "start");
    const Finished f = run_ballast({"plan", dir.write("out/" + name + ".toml", text)});
    EXPECT_EQ(f.exit_code, 0) << f.err;
  }
}

TEST(MovingShapes, SaysWhichSizesItTakes) {
  const TempDir dir;
  const Finished f = make_shapes({dir.path("out"), "--side=5"});
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("an even side"));
  EXPECT_EQ(make_shapes({dir.path("out"), "--dim=100"}).exit_code, 4);
}

}  // namespace
}  // namespace ballast::test
