#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "train/config/config.h"
#include "train/config/enum_names.h"

namespace ballast::train {

// Clips from lines as trainers have them: a prompt, then options for this clip alone:
//   a red circle moves right --w 832 --h 480 --f 81 --d 7 --s 30 --l 5 --fs 5 --n blurry --i a.png
// `usual` says what holds where a line says nothing. Fails with ErrorCode::input, `where` names the
// line's place.
PreviewClip preview_clip(std::string_view line, const PreviewClip& usual, const std::string& where);

// A file of such lines; empty ones and those that begin with # do not count.
std::vector<PreviewClip> preview_clips(const std::string& path, const PreviewClip& usual);

// Where the images are that they begin with.
void find_images(std::vector<PreviewClip>& clips, std::string_view key,
                 const PathFinder& find_path);

}  // namespace ballast::train
