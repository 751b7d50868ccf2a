// The folder of a student: a line of config.json, then tensors line by line (fuzz.h); those behind
// a line "--" are the projection's. Weights of an accepted one can be read.

#include "fuzz.h"
#include "models/student/params.h"
#include "models/student/student_files.h"

namespace ballast::fuzz {
namespace {

struct StudentFolder {
  explicit StudentFolder(const std::string& name)
      : path(memory_folder() + "/" + name),
        config(name + "/config.json"),
        weights(name + "/" + student::kWeightsFile) {}

  std::string path;
  MemoryFile config, weights;
};

void read(const std::string& folder) {
  const student::StudentFiles files(folder);
  student::each_parameter(files.config(), [&](int, const std::string& name, const Shape& shape) {
    require(std::ssize(files.values(name)) == shape.elements());
  });
}

}  // namespace

void one_input(Input input) {
  static StudentFolder plain("student"), projected("projected");
  static MemoryFile projection(std::string("projected/") + student::kProjectionFile);
  constexpr std::string_view kRule = "\n--\n";
  const std::string_view config = input.line();
  const std::size_t rule = input.rest().find(kRule);
  StudentFolder& folder = rule == std::string_view::npos ? plain : projected;
  folder.config.write(config);
  folder.weights.write(safetensors_of_lines(input.rest().substr(0, rule), "\1"));
  if (rule != std::string_view::npos) {
    projection.write(safetensors_of_lines(input.rest().substr(rule + kRule.size()), "\1"));
  }
  accepts([&] { read(folder.path); });
}

}  // namespace ballast::fuzz
