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

void print_json_line(const std::string& document, std::string_view kind) {
  const Json parsed = Json::parse(document);
  if (kind.empty()) return print(one_line(parsed));
  Json j = {{"kind", kind}};
  j.update(parsed);
  print(one_line(j));
}

void print_stopped_early(const PlanOutput& output) {
  Json j = {{"outcome", "stopped"}, {"steps", 0}};
  if (output.steps) {
    j["folder"] = "";
    j["last_loss"] = nullptr;
    j["stopped"] = true;
  }
  print_json_line(j.dump(), output.kind("end"));
}

LineListener record_printer(const PlanOutput& output) {
  if (!output.steps) return {};
  return [](std::string_view line) { print(line); };
}

void with_error_line(const PlanOutput& output, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    if (output.steps) {
      Json j = {{"kind", "error"},
                {"code", static_cast<int>(e.code())},
                {"message", without_rule_ids(e.what())},
                {"trail", e.trail()},
                {"advice", Json::array()}};
      for (const Advice& a : e.advice()) {
        j["advice"].push_back({{"change", a.change}, {"effect", a.effect}});
      }
      print(one_line(j));
    }
    throw;
  }
}

void print_plan(const PlanTitle& title, const PlanView& view, const PlanOutput& output) {
  if (output.json) return print_json_line(plan_json(title, view), output.kind("plan"));
  print(plan_table(title, view, {.details = output.details, .columns = text_columns(stdout)}));
}

void print_outcome(const train::TrainOutcome& done, const std::vector<NamedPath>& places,
                   const PlanOutput& output) {
  const bool gpu = done.planned_gpu.count > 0;
  if (output.json) {
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
    if (output.steps) {
      j["folder"] = done.folder;
      j["last_loss"] = done.last_loss;
      j["stopped"] = done.stopped;
    }
    return print_json_line(j.dump(-1, ' ', false, Json::error_handler_t::replace),
                           output.kind("end"));
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
