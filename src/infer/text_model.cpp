#include "infer/text_model.h"

#include "core/error.h"
#include "io/weight_file_parts.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "models/t5/recognise.h"

namespace ballast::infer {

TextModel::TextModel(const std::string& path, TextModelOptions opts)
    : options(std::move(opts)),
      checkpoint(open_part(path, ModelPart::text_encoder)),
      names(checkpoint),
      config(options.config ? *options.config : t5::model_config(checkpoint, names)) {
  if (options.prompts_per_pass < 1) {
    fail(ErrorCode::usage, "{} prompts in a pass", options.prompts_per_pass);
  }
}

Backend TextModel::backend() const {
  if (options.device == Device::cpu) {
    return {.threads = options.threads > 0 ? options.threads : usable_cpus(read_machine()),
            .verify_weights = options.verify_weights};
  }
  return {.device = Device::cuda,
          .sm = options.profile ? options.profile->sm : open_gpu().sm,
          .verify_weights = options.verify_weights};
}

Precision TextModel::precision() const {
  if (!options.dtype) return precision_on(options.device);
  return {.activation = *options.dtype, .residual = *options.dtype};
}

fit::Request TextModel::request(fit::AnyJob job, std::vector<ProcessLine> lines) const {
  fit::Request r = {.job = std::move(job), .backend = backend()};
  r.profile = options.profile                 ? *options.profile
              : options.device == Device::cpu ? cpu_profile(r.backend.threads)
                                              : nearest_profile(open_gpu().name, open_gpu().sm);
  r.budget = fit::with_limits(options.budget);
  r.policy = options.policy;
  r.other_lines = std::move(lines);
  r.other_lines.insert(r.other_lines.end(), options.other_lines.begin(), options.other_lines.end());
  return r;
}

}  // namespace ballast::infer
