#pragma once

#include <string>
#include <string_view>

#include "memory/tier.h"
#include "plan/program.h"

namespace ballast {

// What users read of a plan. name_of() gives the names that JSON and run logs keep.

// "GPU memory", "RAM", "disk". shared_ram: on the CPU the device tier is a share of the RAM, and
// the RAM budget bounds it too.
std::string_view memory_name(Tier t, bool shared_ram = false);

std::string_view display_name(Role r);  // "saved activations"

// Programs that differ only in shape or expert are one phase: "step.1" is "step".
std::string_view phase_name(std::string_view program);

// "blocks.3.backward.attention_backward" -> "attention backward of block 3"
std::string instruction_text(std::string_view instruction);

// "in the step: attention backward of block 3"
std::string moment_text(std::string_view program, std::string_view instruction);

}  // namespace ballast
