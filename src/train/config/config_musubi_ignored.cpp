#include "train/config/config_dialects.h"

namespace ballast::train {

void declare_musubi_ignored(FlagTable& t) {
  using Takes = FlagTable::Takes;
  t.ignore("offload_inactive_dit", Takes::nothing, "the plan decides where the other expert is");
  t.ignore("force_v2_1_time_embedding", Takes::nothing,
           "one time embedding per sample is always used; the values are the same");
  t.ignore("vae_dtype", Takes::one, "the VAE computes in bf16 on a GPU, in f32 on the CPU");
  t.ignore("clip", Takes::one, "only Wan2.1's image-to-video models have it");
  t.ignore("fp8_t5", Takes::nothing, "the text encoder is streamed as it is stored");
  t.ignore("num_workers", Takes::one, "one reader decodes ahead of the encoder");
  t.ignore("skip_existing", Takes::nothing, "what is cached is always skipped");
  t.ignore("keep_cache", Takes::nothing, "cached files are never removed");
  t.ignore("disable_cudnn_backend", Takes::nothing, "a detail of PyTorch");
  constexpr std::string_view kVae = "where the VAE's memory is, is planned";
  t.ignore(Takes::one, kVae, {"vae_chunk_size", "vae_spatial_tile_sample_min_size"});
  t.ignore(Takes::nothing, kVae, {"vae_cache_cpu", "vae_tiling"});
  t.ignore(Takes::nothing, "there is one attention, whose memory does not grow with L^2",
           {"sdpa", "flash_attn", "flash3", "sage_attn", "xformers", "split_attn"});
  constexpr std::string_view kPlanned = "streaming is planned: exact-size slots, one direction";
  t.ignore(Takes::nothing, kPlanned, {"use_pinned_memory_for_block_swap", "block_swap_h2d_only"});
  t.ignore("block_swap_ring_size", Takes::one, kPlanned);
  t.ignore("disable_numpy_memmap", Takes::nothing, "weights are read, never mapped");
  t.ignore("max_data_loader_n_workers", Takes::one, "one reader works ahead");
  t.ignore("persistent_data_loader_workers", Takes::nothing, "one reader works ahead");
  t.ignore("save_state_on_train_end", Takes::nothing, "the last state is always written");
  t.ignore(Takes::one, "LoRA files are never removed", {"save_last_n_epochs", "save_last_n_steps"});
  t.ignore(Takes::one, "--keep_checkpoints says how many stay",
           {"save_last_n_epochs_state", "save_last_n_steps_state"});
  t.ignore(Takes::one, "the run folder has TensorBoard event files",
           {"logging_dir", "log_with", "log_prefix", "log_tracker_name", "log_tracker_config",
            "wandb_run_name", "wandb_api_key"});
  constexpr std::string_view kCompiled = "ignored: kernels are compiled already";
  t.ignore(Takes::nothing, kCompiled,
           {"compile", "compile_fullgraph", "dynamo_fullgraph", "dynamo_dynamic"});
  t.ignore(Takes::one, kCompiled,
           {"compile_backend", "compile_mode", "compile_dynamic", "compile_cache_size_limit",
            "dynamo_backend", "dynamo_mode"});
  t.ignore(Takes::nothing, "ignored: a setting of PyTorch",
           {"cuda_allow_tf32", "cuda_cudnn_benchmark"});
  constexpr std::string_view kOneProcess = "ignored: one process trains on one GPU";
  t.ignore("ddp_timeout", Takes::one, kOneProcess);
  t.ignore(Takes::nothing, kOneProcess, {"ddp_gradient_as_bucket_view", "ddp_static_graph"});
  t.ignore("log_config", Takes::nothing, "ignored: the run log holds the configuration");
  t.ignore("show_timesteps", Takes::one, "ignored: timesteps are not drawn as a chart");
  constexpr std::string_view kNoUpload = "ignored: nothing is uploaded";
  t.ignore(Takes::one, kNoUpload,
           {"huggingface_repo_id", "huggingface_repo_type", "huggingface_path_in_repo",
            "huggingface_token", "huggingface_repo_visibility"});
  t.ignore(Takes::nothing, kNoUpload, {"save_state_to_huggingface", "async_upload"});
  t.refuse("one_frame", Takes::nothing, "one-frame models are not supported");
  t.refuse("debug_mode", Takes::one, "a debugging aid that is not offered");
  t.refuse("lr_scheduler_type", Takes::one, "Python classes cannot be loaded; use --lr_scheduler");
  t.refuse("resume_from_huggingface", Takes::nothing,
           "nothing is downloaded: use --resume with a run of output_dir");
}

}  // namespace ballast::train
