#include "app/commands/init_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace ballast {
namespace {

bool is_control_byte(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string commented(std::string_view text) {
  std::string out;
  for (bool more = true; more;) {
    const std::size_t end = text.find('\n');
    out += end == 0 ? "#" : "# ";
    for (const char c : text.substr(0, end)) out += is_control_byte(c) ? ' ' : c;
    out += '\n';
    more = end != std::string_view::npos;
    if (more) text.remove_prefix(end + 1);
  }
  return out;
}

std::string toml_line(std::string_view key, const std::string& value,
                      std::string_view comment = "") {
  std::string text = fmt::format("{} = {}", key, value);
  if (!comment.empty()) text += fmt::format("{}# {}", std::string(2, ' '), comment);
  return text + "\n";
}

std::string model_section(const InitChoice& c) {
  std::string text =
      "[model]\n" + toml_line("type", "'wan'") + toml_line("ckpt_path", toml_string(c.model));
  if (!c.vae.empty()) text += toml_line("vae_path", toml_string(c.vae));
  if (!c.text_encoder.empty()) text += toml_line("llm_path", toml_string(c.text_encoder));
  if (!c.tokenizer.empty()) text += toml_line("tokenizer_path", toml_string(c.tokenizer));
  text += toml_line("dtype", "'bfloat16'");
  text += toml_line("transformer_dtype", c.fp8 ? "'float8'" : "'bfloat16'",
                    c.fp8 ? "the frozen weights in 8 bits: half the memory of 'bfloat16'"
                          : "'float8': half the memory of the frozen weights, a little less exact");
  text += toml_line("timestep_sample_method", "'logit_normal'");
  if (c.min_t > 0 || c.max_t < 1) {
    text +=
        toml_line("min_t", fmt::format("{}", c.min_t), "the timesteps that this expert samples");
    text += toml_line("max_t", fmt::format("{}", c.max_t));
  }
  return text;
}

std::string memory_section(const InitChoice& c) {
  std::string text =
      "# What Ballast may use. Without a line: what the machine has free.\n[memory]\n";
  const auto limit = [&](const char* key, const std::string& value, const char* example) {
    text += value.empty() ? fmt::format("# {} = '{}'\n", key, example)
                          : toml_line(key, toml_string(value));
  };
  limit("gpu", option_text(c.machine.gpu), "24GB");
  limit("ram", option_text(c.machine.ram), "32GB");
  if (c.machine.device != DeviceChoice::automatic) {
    text += toml_line("device", toml_string(option_text(c.machine.device)));
  }
  return text;
}

}  // namespace

std::string toml_string(std::string_view text) {
  if (text.find('\'') == std::string_view::npos && std::ranges::none_of(text, is_control_byte)) {
    return fmt::format("'{}'", text);
  }
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (is_control_byte(c)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string init_config_text(const InitChoice& c, const std::string& about) {
  std::string text = commented(about) + "\n";
  text += toml_line("output_dir", toml_string(c.output + "/output"),
                    "runs, checkpoints and LoRA files");
  text += toml_line("dataset", toml_string(c.output + "/" + kInitDataset));
  text += "\n";
  text += toml_line("epochs", "100", "how often each clip is seen; Ctrl-C saves and ends earlier");
  text += toml_line("micro_batch_size_per_gpu", "1");
  text += toml_line("gradient_accumulation_steps", "1", "more: steadier steps, each takes longer");
  text += toml_line("gradient_clipping", "1.0");
  text += toml_line("warmup_steps", "10");
  text += toml_line("save_every_n_epochs", "10", "a LoRA file each time");
  text += toml_line("checkpoint_every_n_minutes", "30", "to go on from with --resume");
  text += toml_line("save_dtype", "'bfloat16'");
  text += toml_line("activation_checkpointing", "true", "the plan decides what is recomputed");
  text += toml_line("seed", "1");
  if (c.both_experts) {
    text += toml_line("experts", "'both'", "two LoRA files, one for each expert of the model");
  }
  text += "\n" + model_section(c) + "\n";
  text += "# Without this section the whole transformer is trained, which takes far more memory.\n";
  text += "[adapter]\n" + toml_line("type", "'lora'");
  text += toml_line("rank", fmt::format("{}", c.rank), "higher: learns more, larger file");
  text += toml_line("dtype", "'bfloat16'") + "\n";
  text += "[optimizer]\n" + toml_line("type", "'adamw_optimi'");
  text += toml_line("lr", "2e-5", "learning rate: 1e-4 learns faster and is less steady");
  text += toml_line("betas", "[0.9, 0.99]") + toml_line("weight_decay", "0.01") +
          toml_line("eps", "1e-8");
  return text + "\n" + memory_section(c);
}

std::string init_dataset_text(const InitChoice& c) {
  std::string text =
      "# Images and videos, each with its caption in a .txt file of the same name beside it.\n";
  text += toml_line("resolutions", fmt::format("[{}]", c.resolution),
                    "side of a square with as many pixels; memory grows with them");
  text += toml_line("enable_ar_bucket", "true", "sizes of the same area for other aspect ratios");
  text +=
      toml_line("min_ar", "0.5") + toml_line("max_ar", "2.0") + toml_line("num_ar_buckets", "7");
  text += toml_line("frame_buckets",
                    c.frames > 1 ? fmt::format("[1, {}]", c.frames) : std::string("[1]"),
                    c.frames > 1 ? "1: images; videos are cut to the longest that they fill: 4n + 1"
                                 : "images only; [1, 33] takes videos of 33 frames, too");
  text += "\n[[directory]]\n" + toml_line("path", toml_string(c.data));
  return text + toml_line("num_repeats", "1");
}

}  // namespace ballast
