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

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    TrainConfig& c = r.c_;
    visit("dataset_path", r.dataset_, "folder of media, embeddings and latents");
    visit("dataset_dir", r.dataset_, "the same");
    visit("batch_size", c.caching.batch_size,
          "clips of a micro-batch (1); captions that are encoded at once, at most", 1);
    visit("checkpoint", c.caching.text_encoder, "the text encoder that captions are encoded with");
    visit("tokenizer_path", c.caching.tokenizer, "its tokenizer");
    visit("vae_checkpoint", c.caching.vae, "the VAE that media are encoded with");
    visit("max_megapixels", c.caching.max_megapixels, "larger media are scaled down to this");
    visit("overwrite", c.regenerate_cache, "encode again what is there");
    visit("dtype", c.caching.store, "of embeddings and latents: fp16, bf16 or fp32", kStored);
    visit("num_epochs", c.epochs, "(100)", 1, kNoEpochLimit - 1);
    visit("learning_rate", c.schedule.learning_rate, "the highest one (1e-4)");
    visit("checkpoint_dir", c.output_dir, "where the model is written");
    visit("model", c.model.checkpoint, "the transformer");
    visit("gradient_accumulation_steps", c.gradient_accumulation, "micro-batches per step", 1);
    visit("gradient_checkpointing", r.recompute_, "compute activations again in backward");
    visit("use_8bit_adam", r.eight_bit_, "optimizer state in 8 bits");
  }

  void declare(FlagTable& t) {
    t.add_fields(*this);
    t.ignore("num_workers", Takes::one, "one reader works ahead");
    t.ignore("vae_gradient_checkpointing", Takes::nothing, "no VAE is trained");
    t.ignore("decode_test", Takes::nothing, "golden results check the VAE");
    t.ignore(Takes::one, "tiles are planned and change no bit", {"tile_size", "tile_overlap"});
    t.ignore("log_level", Takes::one, "there is one");
    t.ignore("torch_compile", Takes::nothing, "kernels are compiled already");
  }

  TrainConfig read(std::span<const Setting> flags) {
    CommonFlags common;
    common.declare(table_);
    declare(table_);
    table_.read(flags);
    if (!dataset_.name.empty()) c_.dataset = {"train", dataset_.text(), dataset_.where};
    if (recompute_) c_.memory.checkpointing = Checkpointing::recompute;
    c_.micro_batch.plain = c_.caching.batch_size.value_or(c_.micro_batch.plain);
    c_.image_micro_batch = c_.eval_micro_batch = c_.eval_image_micro_batch = c_.micro_batch;
    c_.optimizer = optimizer_defaults(eight_bit_ ? OptimizerKind::adamw8bit : OptimizerKind::adamw,
                                      trained_dtype(c_));
    common.apply(c_);
    return std::move(c_);
  }

 private:
  TrainConfig c_;
  FlagTable table_;
  Setting dataset_;
  bool recompute_ = false, eight_bit_ = false;
};

}  // namespace

void describe_flow_matching(FlagTable& table) { FlowMatchingReader().declare(table); }

TrainConfig read_flow_matching(std::span<const Setting> flags) {
  return FlowMatchingReader().read(flags);
}

}  // namespace ballast::train
