#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ballast {

// Keys of web services stand in configurations and command lines; records of a run are shown to
// others. What is hidden becomes kHidden.

inline constexpr std::string_view kHidden = "(hidden)";

// "wandb_api_key", "huggingface-token", "WEBHOOK_URL": anything whose value would let somebody in.
bool is_secret_name(std::string_view name);

// TOML, or text near it, with the values of such keys hidden, in comments as well. A value may go
// over several lines. true and false are no secrets and stay. Addresses of webhooks, addresses with
// a password and keys such as hf_... are hidden wherever they stand.
std::string hide_secrets(std::string_view toml);

// A command line as a shell would take it again, values of such flags and such addresses hidden.
std::string shown_command(std::string_view program, std::span<const std::string> arguments);

}  // namespace ballast
