#include <fmt/format.h>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

constexpr std::array<EnumName<DType>, 3> kStored = {
    {{"fp16", DType::f16}, {"bf16", DType::bf16}, {"fp32", DType::f32}}};

// The flow-matching trainer: full fine-tune of TI2V-5B in bf16 on latents cached beside the media.
// Model time is 1000 sigma, as the checkpoint has it.
class FlowMatchingReader {
 public:
  FlowMatchingReader() : table_(&c_.notes) {
    c_.dialect = Dialect::flow_matching;
    c_.method = Method::full;
    c_.model.checkpoint = "models/wan2.2_ti2v_5B_fp16.safetensors";
    c_.model.dtype = DType::bf16;
    c_.model.transformer_dtype = DType::bf16;
    c_.dataset = {"train", "./dataset/"};
    c_.output_dir = "checkpoints";
    c_.output_name = "wan22_flow";
    c_.epochs = 100;
    c_.save.epochs = 1;
    c_.evaluate_before_first_step = false;
    c_.schedule.kind = ScheduleKind::cosine;
    c_.schedule.style = ScheduleStyle::per_epoch_cosine;
    c_.schedule.learning_rate = 1e-4;
    c_.schedule.min_rate = 1e-6;
    c_.timesteps.sampling = TimestepSampling::shifted_table;
    c_.timesteps.shift = 8;
    c_.timesteps.time_offset = 0;
  }

  void declare(FlagTable& t) {
    const auto dataset = [this](const Setting& s) {
      c_.dataset.config = s.text();
      c_.dataset.named = s.where;
    };
    t.add("dataset_path", Takes::one, "folder of media, embeddings and latents", dataset);
    t.add("dataset_dir", Takes::one, "the same", dataset);
    t.add("batch_size", Takes::one,
          "clips of a micro-batch (1); captions that are encoded at once, at most",
          [this](const Setting& s) {
            c_.micro_batch.plain = s.integer();
            if (c_.micro_batch.plain < 1) s.fail_value("at least 1");
            c_.caching.batch_size = c_.micro_batch.plain;
          });
    t.add("checkpoint", c_.caching.text_encoder, "the text encoder that captions are encoded with");
    t.add("tokenizer_path", c_.caching.tokenizer, "its tokenizer");
    t.add("vae_checkpoint", c_.caching.vae, "the VAE that media are encoded with");
    t.add("max_megapixels", c_.caching.max_megapixels, "larger media are scaled down to this");
    t.add("overwrite", c_.regenerate_cache, "encode again what is there");
    t.add("dtype", c_.caching.store, "of embeddings and latents: fp16, bf16 or fp32", kStored);
    t.add("num_epochs", Takes::one, "(100)", [this](const Setting& s) {
      c_.epochs = s.integer();
      if (c_.epochs < 1 || c_.epochs >= kNoEpochLimit) s.fail_value("at least 1");
    });
    t.add("learning_rate", c_.schedule.learning_rate, "the highest one (1e-4)");
    t.add("checkpoint_dir", c_.output_dir, "where the model is written");
    t.add("model", c_.model.checkpoint, "the transformer");
    t.add("gradient_accumulation_steps", c_.gradient_accumulation, "micro-batches per step", 1);
    t.add("gradient_checkpointing", Takes::nothing, "compute activations again in backward",
          [this](const Setting& s) {
            if (!s.off) c_.memory.checkpointing = Checkpointing::recompute;
          });
    t.add("use_8bit_adam", eight_bit_, "optimizer state in 8 bits");
    t.ignore("num_workers", Takes::one, "one reader works ahead");
    t.ignore("vae_gradient_checkpointing", Takes::nothing, "no VAE is trained");
    t.ignore("decode_test", Takes::nothing, "golden results check the VAE");
    t.ignore("tile_size", Takes::one, "tiles are planned and change no bit");
    t.ignore("tile_overlap", Takes::one, "tiles are planned and change no bit");
    t.ignore("log_level", Takes::one, "there is one");
    t.ignore("torch_compile", Takes::nothing, "kernels are compiled already");
  }

  TrainConfig read(std::span<const Setting> flags) {
    CommonFlags common;
    common.declare(table_);
    declare(table_);
    table_.read(flags);
    c_.image_micro_batch = c_.eval_micro_batch = c_.eval_image_micro_batch = c_.micro_batch;
    c_.optimizer = optimizer_defaults(eight_bit_ ? OptimizerKind::adamw8bit : OptimizerKind::adamw,
                                      trained_dtype(c_));
    common.apply(c_);
    return std::move(c_);
  }

 private:
  TrainConfig c_;
  FlagTable table_;
  bool eight_bit_ = false;
};

}  // namespace

void describe_flow_matching(FlagTable& table) { FlowMatchingReader().declare(table); }

TrainConfig read_flow_matching(std::span<const Setting> flags) {
  return FlowMatchingReader().read(flags);
}

}  // namespace ballast::train
