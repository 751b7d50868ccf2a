// JSON beside a model's weights. The first byte chooses: 'T' config.json of T5, 'S' of a student,
// 'P' adapter_config.json of PEFT, 'V' config.json of a VAE, 'E' the names in a .env file.

#include "fuzz.h"
#include "io/vae_statistics.h"
#include "models/student/config.h"
#include "models/t5/config.h"
#include "models/wan/peft_config.h"
#include "report/service_key.h"

namespace ballast::fuzz {
namespace {

void read_t5(std::string_view text) {
  const t5::Config config = t5::read_config({.text = text, .path = "fuzz", .rule = "fuzz"});
  require(config.heads > 0 && config.d_model > 0 && config.layers > 0 && config.vocabulary > 0);
}

void read_student(std::string_view text) {
  const student::Config config = student::parse_config(text, "fuzz");
  student::Config again = student::parse_config(student::config_text(config), "fuzz");
  require(again == config);
}

void read_peft(std::string_view text) {
  const std::string names[] = {"blocks.0.self_attn.q", "blocks.0.attn1.to_q"};
  wan::read_peft_config({.text = text, .path = "fuzz", .rule = "fuzz"}).alpha_of(names, 8);
}

void read_vae(std::string_view text) {
  static MemoryFile file("config.json");
  const VaeStatistics s = read_vae_statistics(file.write(text), 4);
  require(s.mean.size() == s.std.size() && (s.empty() || s.mean.size() == 4));
}

}  // namespace

void one_input(Input input) {
  const std::uint8_t kind = input.byte();
  const std::string_view text = input.rest();
  accepts([&] {
    if (kind == 'T') read_t5(text);
    if (kind == 'S') read_student(text);
    if (kind == 'P') read_peft(text);
    if (kind == 'V') read_vae(text);
    if (kind == 'E') value_in_env_text(text, "WANDB_API_KEY");
  });
}

}  // namespace ballast::fuzz
