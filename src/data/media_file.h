#pragma once

#include <memory>
#include <optional>

#include "core/bytes.h"
#include "data/dataset_encoding.h"

namespace ballast::data {

// A media file, or a folder of images that are the frames of a clip, in order of their names
// (musubi-tuner's video_path). Its frame rate is not known: all images count.
std::unique_ptr<OpenMedia> open_media(const FileSource& source);

// Memory that reading clips of at most this size from it takes at most, by its header; nullopt
// where it cannot be read.
std::optional<Bytes> media_bytes(const FileSource& source, PixelSize clip);

}  // namespace ballast::data
