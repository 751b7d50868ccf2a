#pragma once

#include <string>
#include <vector>

namespace ballast {

// ballast COMMAND ...: finds the command, reads its options, runs it and explains failures on
// stderr. arguments: without the program's name. Returns the exit code.
int run_program(const std::vector<std::string>& arguments);

// A command inside a process of another program. What it prints is appended to `output`, also when
// it then fails; failures are Errors.
void run_command(const std::vector<std::string>& arguments, std::string& output);

}  // namespace ballast
