#include "train/config/config_dialects.h"

namespace ballast::train {

void declare_seq2seq_ignored(FlagTable& t) {
  using Takes = FlagTable::Takes;
  constexpr std::string_view kKernels = "kernels are compiled already";
  t.ignore(Takes::nothing, kKernels, {"disable_compilation", "disable_cudagraphs"});
  t.ignore("torch_compile", Takes::maybe_one, kKernels);
  t.ignore("enable_mixed_precision", Takes::nothing, "see --weights: bf16 is the default here");
  t.ignore("enable_profiling", Takes::nothing, "times of every step are in the run log");
  t.ignore("profile_schedule", Takes::one, "times of every step are in the run log");
  t.ignore("alert_phone", Takes::one, "no messages are sent to phones");
  t.ignore("use_fast_tokenizer", Takes::maybe_one, "there is one tokenizer");
  t.ignore("do_train", Takes::maybe_one, "ballast train trains");
  t.ignore("do_eval", Takes::maybe_one, "a validation file is evaluated");
  t.ignore("do_predict", Takes::maybe_one, "see --predict_with_generate");
  t.ignore("report_to", Takes::many, "TensorBoard and a run log are always written");
  t.ignore("logging_dir", Takes::one, "records are in the output folder");
  t.ignore("logging_strategy", Takes::one, "see --logging_steps");
  t.ignore("overwrite_cache", Takes::maybe_one, "caches are made again when their texts change");
  t.ignore("cache_dir", Takes::one, "nothing is downloaded");
  t.ignore("trust_remote_code", Takes::maybe_one, "no code comes with a model");
  t.ignore("save_safetensors", Takes::maybe_one, "always");
  t.ignore("ddp_find_unused_parameters", Takes::maybe_one, "one process trains");
  t.ignore("local_rank", Takes::one, "one process trains");
  t.ignore("dataloader_pin_memory", Takes::maybe_one, "the plan pins what is copied");
  t.ignore("tf32", Takes::maybe_one, "what is computed in is planned");
  t.ignore(Takes::maybe_one, "nothing is downloaded",
           {"model_revision", "token", "use_auth_token", "hub_token", "hub_model_id"});
  t.ignore(Takes::maybe_one, "there is one place for each: see the run log",
           {"run_name", "log_level", "logging_first_step", "logging_nan_inf_filter", "disable_tqdm",
            "include_inputs_for_metrics", "include_num_input_tokens_seen"});
  t.ignore(Takes::maybe_one, "the same bits always", {"data_seed", "full_determinism"});
  t.ignore(Takes::maybe_one, "batches are read as they are needed",
           {"dataloader_drop_last", "dataloader_persistent_workers", "dataloader_prefetch_factor",
            "remove_unused_columns", "length_column_name", "eval_accumulation_steps",
            "eval_do_concat_batches", "sortish_sampler"});
  t.ignore(Takes::maybe_one, "checkpoints are there to go on from", {"save_only_model"});
  t.ignore(Takes::maybe_one, "padding never counts in the loss", {"ignore_pad_token_for_loss"});
  t.ignore(Takes::maybe_one, "T5 has relative positions", {"resize_position_embeddings"});
  t.ignore(Takes::maybe_one, "recomputing is planned",
           {"gradient_checkpointing_kwargs", "auto_find_batch_size"});
  t.ignore(Takes::maybe_one, "evaluation computes as training does",
           {"bf16_full_eval", "fp16_full_eval"});
  ignore_launcher_flags(t);
  t.refuse("fp16", Takes::maybe_one,
           "T5's feed-forward layers overflow in fp16: use --bf16 or leave it out");
  t.refuse("dataset_name", Takes::one, "nothing is downloaded: use --train_file");
  t.refuse("push_to_hub", Takes::maybe_one, "nothing is uploaded");
  t.refuse("deepspeed", Takes::one, "the plan decides where weights and states are");
  t.add("label_smoothing_factor", Takes::one, "0: labels are not smoothed", [](const Setting& s) {
    if (s.number() != 0) s.fail_value("0: labels are not smoothed here");
  });
}

}  // namespace ballast::train
