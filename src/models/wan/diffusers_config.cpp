#include "models/wan/diffusers_config.h"

#include <fmt/format.h>

namespace ballast::wan {

std::string diffusers_config_json(const Config& c) {
  return fmt::format(
      R"({{
  "_class_name": "WanTransformer3DModel",
  "added_kv_proj_dim": null,
  "attention_head_dim": {},
  "cross_attn_norm": true,
  "eps": {},
  "ffn_dim": {},
  "freq_dim": {},
  "image_dim": null,
  "in_channels": {},
  "num_attention_heads": {},
  "num_layers": {},
  "out_channels": {},
  "patch_size": [1, 2, 2],
  "pos_embed_seq_len": null,
  "qk_norm": "rms_norm_across_heads",
  "rope_max_seq_len": 1024,
  "text_dim": {}
}}
)",
      c.head_dim(), c.eps, c.ffn_dim, c.freq_dim, c.in_dim, c.heads, c.layers, c.out_dim,
      c.text_dim);
}

}  // namespace ballast::wan
