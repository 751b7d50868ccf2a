#include "train/run/base_merge.h"

#include "infer/merged_model.h"
#include "memory/machine.h"
#include "models/wan/weights.h"

namespace ballast::train {

Bytes base_merge_bytes(const WeightFiles& model) { return infer::merged_model_bytes(model); }

void merge_base_loras(PreparedRun& run) {
  const auto& loras = run.config.model.base_loras;
  if (loras.empty()) return;
  const Backend& backend = run.request.backend;  // merging is the processors' work
  const int threads = backend.device == Device::cpu ? backend.threads : usable_cpus(read_machine());
  for (std::size_t e = 0; e < run.checkpoints.size(); ++e) {
    run.checkpoints[e] = WeightFiles::open(infer::merged_model(
        run.checkpoints[e], run.model(), loras, run.config.output_dir, threads));
    wan::job_of(run.request).experts[e] =
        weight_groups(run.model(), run.checkpoints[e], wan::TensorMap(run.checkpoints[e]));
  }
}

}  // namespace ballast::train
