#pragma once

#include "app/command.h"

namespace ballast {

// The subcommands of `ballast bench`.
std::unique_ptr<Command> bench_distill();
std::unique_ptr<Command> bench_kernels();
std::unique_ptr<Command> bench_machine();
std::unique_ptr<Command> bench_t5();
std::unique_ptr<Command> bench_text();
std::unique_ptr<Command> bench_vae();
std::unique_ptr<Command> bench_wan();

}  // namespace ballast
