#include "models/student/student_files.h"

#include <filesystem>

#include "core/convert.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "models/student/params.h"

namespace ballast::student {
namespace {

namespace fs = std::filesystem;

// In the weights' metadata: the channels that the student answers in, through its projection where
// they are not its own.
constexpr const char* kChannelsKey = "ballast.teacher_channels";

std::string weights_path(const std::string& folder) {
  const char* const names[] = {kWeightsFile, "diffusion_model.safetensors", "model.safetensors"};
  for (const char* name : names) {
    const std::string path = folder + "/" + name;
    if (is_file(path)) return path;
  }
  fail(ErrorCode::input,
       fmt::format("{} has no weights of a student: none of {}, {}, {} is there", folder, names[0],
                   names[1], names[2]),
       {{"name the folder that a distillation saved", "it holds config.json and the weights"}});
}

// A projection that is missing, or another student's. Files of other programs say nothing.
void check_channels(const SafetensorsFile& weights, const std::string& folder, const Config& c) {
  const auto noted = weights.metadata().find(kChannelsKey);
  if (noted == weights.metadata().end() || noted->second == std::to_string(c.teacher_channels)) {
    return;
  }
  const std::string wanted = printable(noted->second, 20);
  fail(ErrorCode::input,
       c.projects()
           ? fmt::format("{}/{} gives {} channels, {} was trained to give {}", folder,
                         kProjectionFile, c.teacher_channels, weights.path(), wanted)
           : fmt::format("{} has no {}: it holds the projection of the student's {} channels to "
                         "the {} that it was trained to give",
                         folder, kProjectionFile, c.num_channels, wanted),
       {{fmt::format("copy {} of the folder that the distillation saved", kProjectionFile),
         fmt::format("it belongs beside {}", fs::path(weights.path()).filename().string())}});
}

// Of a tensor within the file that has it.
std::string name_in_file(const std::string& name) {
  return in_projection_file(name) ? name.substr(name.find('.') + 1) : name;
}

}  // namespace

void save_student(const std::string& folder, const Config& config,
                  const std::function<ByteSource(const std::string& name)>& source) {
  SafetensorsWriter weights(
      {.metadata = {{"format", "pt"}, {kChannelsKey, std::to_string(config.teacher_channels)}}});
  SafetensorsWriter projection({.metadata = {{"format", "pt"}}});
  each_parameter(config, [&](int, const std::string& name, const Shape& shape) {
    SafetensorsWriter& writer = in_projection_file(name) ? projection : weights;
    writer.add(name_in_file(name), DType::f32, shape, source(name));
  });
  weights.write(folder + "/" + kWeightsFile);
  if (config.projects()) projection.write(folder + "/" + kProjectionFile);
  AtomicFile json(folder + "/config.json");
  json.write(config_text(config));
  json.commit();
}

StudentFiles::StudentFiles(const std::string& folder)
    : folder_(folder),
      config_(read_config(folder + "/config.json")),
      weights_(SafetensorsFile::open(weights_path(folder))) {
  // The channels that it answers in are those of its projection, or its own.
  config_.teacher_channels = config_.num_channels;
  if (is_file(folder + "/" + kProjectionFile)) {
    projection_.push_back(SafetensorsFile::open(folder + "/" + kProjectionFile));
    const Shape weight = projection_[0].get("weight").shape;
    if (weight.rank() != 4 || weight[0] < 1 || weight[0] == config_.num_channels ||
        weight[0] > 1024) {
      fail(ErrorCode::input, "{}: weight is {}, expected [channels, {}, 1, 1]",
           projection_[0].path(), weight, config_.num_channels);
    }
    config_.teacher_channels = weight[0];
  }
  check_channels(weights_, folder, config_);
  each_parameter(config_, [&](int, const std::string& name, const Shape& shape) {
    const SafetensorsFile& file = in_projection_file(name) ? projection_[0] : weights_;
    const SafetensorsEntry& entry = file.get(name_in_file(name));
    if (entry.shape != shape) {
      fail(ErrorCode::input, "{}: {} is {}, config.json makes it {}", file.path(), entry.name,
           entry.shape, shape);
    }
    if (!convertible(file.dtype(entry), DType::f32)) {
      fail(ErrorCode::input, "{}: {} is {}; weights are floating-point numbers", file.path(),
           entry.name, entry.dtype);
    }
  });
}

std::vector<float> StudentFiles::values(const std::string& name) const {
  const SafetensorsFile& file = in_projection_file(name) ? projection_[0] : weights_;
  return file.floats(file.get(name_in_file(name)));
}

}  // namespace ballast::student
