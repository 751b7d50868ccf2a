#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/safetensors.h"
#include "models/wan/config.h"
#include "models/wan/lora_module.h"

namespace ballast::wan {

// What other programs read, of one module:
//   comfy  diffusion_model.blocks.0.self_attn.q.lora_A.weight, .lora_B.weight
//   kohya  lora_unet_blocks_0_self_attn_q.lora_down.weight, .lora_up.weight, .alpha
//   peft   transformer.blocks.0.attn1.to_q.lora_A.weight, .lora_B.weight
enum class LoraFormat : std::uint8_t { comfy, kohya, peft };
std::string_view name_of(LoraFormat format);
std::optional<LoraFormat> find_lora_format(std::string_view name);

struct LoraWriteOptions {
  LoraFormat format = LoraFormat::comfy;
  std::optional<DType> dtype;     // f32, bf16 or f16; none: each tensor as it is
  Metadata metadata;              // beside what the format itself asks for
  const Config* model = nullptr;  // kohya: which modules there are; nullptr: those the file implies
};

// Writes a LoRA, atomically and in pieces. Factors whose scale is 1 keep every bit when the dtype
// stays. comfy and peft store no alpha: another scale is folded into the factors. kohya stores it
// with every module, and is complete: modules that are missing in the blocks are written as zeros,
// because diffusers refuses a file without them.
//
// Metadata is options.metadata without what describes another format, plus format = pt; kohya:
// ss_network_* and modelspec.architecture, peft: lora_adapter_metadata.
//
// Fails with ErrorCode::input when the format cannot hold a module (peft: .diff) or when the shapes
// of missing modules cannot be known.
struct LoraWritten {
  std::int64_t modules = 0;  // with those below
  std::int64_t filled = 0;   // zeros, for kohya
  std::uint64_t bytes = 0;   // of the file
};
LoraWritten write_lora(const std::string& path, std::span<const LoraModule> modules,
                       const LoraWriteOptions& options);

// diffusion-pipe keeps this beside adapter_model.safetensors (format comfy): folder/
// adapter_config.json.
void write_adapter_config(const std::string& folder, std::span<const LoraModule> modules,
                          double dropout = 0);

}  // namespace ballast::wan
