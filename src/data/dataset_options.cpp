#include "data/dataset_options.h"

#include <filesystem>

#include "core/path_kind.h"

namespace ballast::data {

DatasetFileKind recognise_dataset(const TomlTable& root) {
  const bool pipe = root.has("directory");
  const bool musubi = root.has("datasets");
  if (pipe && musubi) {
    root.fail_at("datasets",
                 "stands beside [[directory]]: a file is diffusion-pipe's or "
                 "musubi-tuner's, not both");
  }
  if (pipe) return DatasetFileKind::diffusion_pipe;
  if (musubi) return DatasetFileKind::musubi;
  fail(ErrorCode::input,
       "{}: a dataset file has [[directory]] (diffusion-pipe) or [[datasets]] "
       "(musubi-tuner); this one has neither",
       root.path());
}

std::string resolve_path(const std::string& written, const std::string& named_in) {
  const std::filesystem::path path(written);
  if (path.is_absolute() || path_exists(path)) return written;
  const std::filesystem::path beside = std::filesystem::path(named_in).parent_path() / path;
  return path_exists(beside) ? beside.string() : written;
}

}  // namespace ballast::data
