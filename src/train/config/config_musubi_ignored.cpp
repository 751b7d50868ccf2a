#include "train/config/config_dialects.h"

namespace ballast::train {

void declare_musubi_ignored(FlagTable& t) {
  using Takes = FlagTable::Takes;
  const auto ignore = [&](Takes takes, std::string_view reason,
                          std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) t.ignore(name, takes, reason);
  };
  constexpr std::string_view kCompiled = "ignored: kernels are compiled already";
  ignore(Takes::nothing, kCompiled,
         {"compile", "compile_fullgraph", "dynamo_fullgraph", "dynamo_dynamic"});
  ignore(Takes::one, kCompiled,
         {"compile_backend", "compile_mode", "compile_dynamic", "compile_cache_size_limit",
          "dynamo_backend", "dynamo_mode"});
  ignore(Takes::nothing, "ignored: a setting of PyTorch",
         {"cuda_allow_tf32", "cuda_cudnn_benchmark"});
  constexpr std::string_view kOneProcess = "ignored: one process trains on one GPU";
  ignore(Takes::one, kOneProcess, {"ddp_timeout"});
  ignore(Takes::nothing, kOneProcess, {"ddp_gradient_as_bucket_view", "ddp_static_graph"});
  ignore(Takes::nothing, "ignored: the run log holds the configuration", {"log_config"});
  ignore(Takes::one, "ignored: timesteps are not drawn as a chart", {"show_timesteps"});
  constexpr std::string_view kNoUpload = "ignored: nothing is uploaded";
  ignore(Takes::one, kNoUpload,
         {"huggingface_repo_id", "huggingface_repo_type", "huggingface_path_in_repo",
          "huggingface_token", "huggingface_repo_visibility"});
  ignore(Takes::nothing, kNoUpload, {"save_state_to_huggingface", "async_upload"});
  t.refuse("resume_from_huggingface", Takes::nothing,
           "nothing is downloaded: use --resume with a run of output_dir");
}

}  // namespace ballast::train
