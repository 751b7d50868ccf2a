#include "app/training_output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/output.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::string one_line(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void print_json_line(const std::string& document) { print(one_line(Json::parse(document))); }

void print_plan(const PlanTitle& title, const PlanView& view, const PlanOutput& output) {
  if (output.json) return print_json_line(plan_json(title, view));
  print(plan_table(title, view, {.details = output.details, .columns = text_columns(stdout)}));
}

void print_outcome(const train::TrainOutcome& done, const std::vector<NamedPath>& places,
                   bool json) {
  const bool gpu = done.planned_gpu.count > 0;
  if (json) {
    Json j = {{"outcome", done.stopped ? "stopped" : "finished"},
              {"steps", done.steps},
              {"loss", done.last_loss},
              {"planned_ram_bytes", done.planned.count},
              {"ram_bytes", done.measured.count}};
    if (gpu) {
      j["planned_gpu_bytes"] = done.planned_gpu.count;
      j["gpu_bytes"] = done.measured_gpu.count;
    }
    if (done.batches_per_second > 0) {
      j["samples_per_second"] = done.samples_per_second;
      j["batches_per_second"] = done.batches_per_second;
    }
    for (const NamedPath& p : places) j[p.name] = p.where;
    j["report"] = done.report;
    return print(one_line(j));
  }
  std::string text = fmt::format("{} after {} steps, loss {:.5f}\n",
                                 done.stopped ? "stopped" : "finished", done.steps, done.last_loss);
  if (done.batches_per_second > 0) {
    text += fmt::format("speed: {:.3g} samples/s, {:.3g} batches/s\n", done.samples_per_second,
                        done.batches_per_second);
  }
  if (gpu) {
    text += fmt::format("GPU memory: planned {}, measured at most {}\n", done.planned_gpu,
                        done.measured_gpu);
  }
  text += fmt::format("RAM: planned {}, measured at most {}\n", done.planned, done.measured);
  for (const NamedPath& p : places) text += fmt::format("{:<7} {}\n", p.name, p.where);
  print(text + fmt::format("report  {}\n", done.report.empty() ? "none" : done.report));
}

}  // namespace ballast
