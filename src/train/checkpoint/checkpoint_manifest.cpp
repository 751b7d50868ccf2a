#include "train/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <optional>

#include "core/checksum.h"
#include "core/error.h"
#include "io/json_writer.h"
#include "memory/text_file.h"

namespace ballast::train {
namespace {

constexpr std::string_view kFormat = "ballast-checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxFiles = 64;

// Never a way out of the folder.
bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

CheckpointManifest::File read_file(JsonReader& json) {
  CheckpointManifest::File file;
  std::optional<std::uint64_t> bytes;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "name") {
      file.name = json.string();
      if (!is_plain(file.name)) json.fail_value("not a plain file name");
    } else if (key == "bytes") {
      bytes = json.u64();
    } else if (key == "xxh3") {
      file.checksum = json.string();
      if (!is_checksum_text(file.checksum)) json.fail_value("not 16 hexadecimal digits");
    } else {
      json.fail_here("a key that this version does not know");
    }
  }
  if (file.name.empty() || !bytes || file.checksum.empty()) {
    json.fail_here("a file needs name, bytes and xxh3");
  }
  file.bytes = *bytes;
  return file;
}

std::string read_text(const std::string& path) {
  return read_text_file(path, kCheckpointTextBytes, "a checkpoint's JSON");
}

}  // namespace

const CheckpointManifest::File& CheckpointManifest::file(const std::string& folder,
                                                         std::string_view name) const {
  const auto has_name = [&](const File& f) { return f.name == name; };
  const auto count = std::count_if(files.begin(), files.end(), has_name);
  if (count != 1) {
    fail(ErrorCode::input, "{}/{}: lists {} files {}", folder, kManifestFile, count, name);
  }
  return *std::find_if(files.begin(), files.end(), has_name);
}

std::string to_json(const CheckpointManifest& m) {
  std::string out = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"step\": {},\n  \"world_size\": {}",
      kFormat, kVersion, m.step, m.world_size);
  const auto text = [&](const char* key, const std::string& value) {
    out += fmt::format(",\n  \"{}\": ", key);
    append_json_string(out, value);
  };
  text("config_hash", m.config_hash);
  text("plan_hash", m.plan_hash);
  text("model_hash", m.model_hash);
  out += ",\n  \"files\": [";
  const char* comma = "\n    ";
  for (const CheckpointManifest::File& f : m.files) {
    out += comma;
    out += "{\"name\": ";
    append_json_string(out, f.name);
    out += fmt::format(", \"bytes\": {}, \"xxh3\": \"{}\"}}", f.bytes, f.checksum);
    comma = ",\n    ";
  }
  return out += "\n  ]\n}\n";
}

CheckpointManifest parse_manifest(JsonSource source) {
  CheckpointManifest m;
  bool format = false, version = false, step = false;
  JsonReader json(std::move(source));
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "format") {
      format = json.string() == kFormat;
      if (!format) json.fail_value(fmt::format("not \"{}\"", kFormat));
    } else if (key == "version") {
      version = json.u64() == kVersion;
      if (!version) json.fail_value(fmt::format("this program reads version {}", kVersion));
    } else if (key == "step") {
      m.step = json.i64();
      step = true;
    } else if (key == "world_size") {
      m.world_size = json.i64();
    } else if (key == "config_hash") {
      m.config_hash = json.string();
    } else if (key == "plan_hash") {
      m.plan_hash = json.string();
    } else if (key == "model_hash") {
      m.model_hash = json.string();
    } else if (key == "files") {
      json.open_array();
      while (json.next_element()) {
        m.files.push_back(read_file(json));
        if (m.files.size() > kMaxFiles) json.fail_here("too many files");
      }
    } else {
      json.fail_here("a key that this version does not know");
    }
  }
  if (!format || !version || !step) json.fail_here("format, version or step is missing");
  json.finish();
  return m;
}

CheckpointManifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  const std::string text = read_text(path);
  if (read_text(folder + "/" + kCommittedFile) != checksum_text(text)) {
    fail(ErrorCode::input, "{}: {} is not the checksum of {}", folder, kCommittedFile,
         kManifestFile);
  }
  return parse_manifest({.text = text, .path = path, .rule = "checkpoint.manifest"});
}

}  // namespace ballast::train
