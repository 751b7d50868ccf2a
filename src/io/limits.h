#pragma once

#include <cstdint>

// What a file may ask of its reader. Model files come from strangers: every number in them is
// compared with one of these, and with the bytes that are really there, before anything is sized by
// it.
namespace ballast::limits {

inline constexpr std::uint64_t kTensors = 1'000'000;  // per file and per checkpoint
inline constexpr std::uint64_t kNameBytes = 4096;     // of one tensor
inline constexpr int kDimensions = 8;
inline constexpr int kJsonDepth = 32;
inline constexpr std::uint64_t kSafetensorsHeaderRead = 100'000'000;
inline constexpr std::uint64_t kSafetensorsHeaderWrite = 25'000'000;
inline constexpr std::uint64_t kMetadataKeys = 65'536;  // bounds the map built from one header
inline constexpr std::uint64_t kIndexBytes = 256ull << 20;
inline constexpr std::uint64_t kShards = 4096;
inline constexpr std::uint64_t kConfigBytes = 16 << 20;       // a model's or an adapter's JSON
inline constexpr std::uint64_t kPromptBytes = 1 << 20;        // one line of a prompt file
inline constexpr std::uint64_t kPromptFileBytes = 256 << 20;  // prompts that are held in memory
inline constexpr std::uint64_t kMediaListLine = 16 << 20;     // one record of a JSONL of media
inline constexpr std::uint64_t kMediaListBytes = 256ull << 20;
inline constexpr std::uint64_t kQuantNoteBytes = 64 << 10;  // one comfy_quant tensor
inline constexpr std::int64_t kMediaSide = 16'384;          // pixels of an image or a frame
inline constexpr std::int64_t kMediaPixels = 64'000'000;
inline constexpr std::int64_t kMediaFrames = 1 << 22;       // 38 hours at 30 frames a second
inline constexpr std::uint64_t kMediaTextBytes = 16 << 20;  // what a media file says about itself

inline constexpr std::uint64_t kZipEntries = 1'000'000;
inline constexpr std::uint64_t kZipDirectory = 64 << 20;
inline constexpr std::uint64_t kPickleBytes = 64 << 20;
inline constexpr std::uint64_t kPickleOpcodes = 5'000'000;
inline constexpr std::uint64_t kPickleStack = 1'000'000;  // values, marks, lists and dicts each
inline constexpr std::uint64_t kPickleString = 1 << 20;
inline constexpr std::uint64_t kGgufMetadata = 256ull << 20;
inline constexpr std::uint64_t kGgufString = 16 << 20;
inline constexpr std::uint64_t kGgufArray = 16 << 20;  // elements
inline constexpr std::uint64_t kGgufKey = 65'535;
inline constexpr std::uint64_t kGgufName = 255;

}  // namespace ballast::limits
