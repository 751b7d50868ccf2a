#include "app/commands/sample_student.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/commands/sample_files.h"
#include "app/output.h"
#include "app/planning.h"
#include "core/error.h"
#include "core/to_size.h"
#include "infer/model_folder.h"
#include "infer/student_sampler.h"
#include "io/hub_cache.h"
#include "models/student/student_files.h"
#include "ops/linear/sgemm.h"

namespace ballast {
namespace {

constexpr std::string_view kModelFlag = "--model-path";

}  // namespace

std::string StudentSample::help() {
  return "\nA image by a distilled student: ballast sample --model_path STUDENT --teacher_path "
         "FOLDER\n--prompt TEXT [--output_path inference_result.png] [--num_inference_steps 20]\n";
}

train::FlagTable StudentSample::flags(std::vector<std::string>& notes) {
  train::FlagTable t(&notes);
  t.add("model_path", model_path_, "folder of the student: config.json and its weights");
  t.add("teacher_path", teacher_path_, "folder with the text encoder, the tokenizer and the VAE");
  t.add("prompt", prompt_, "what the image shows");
  t.add("cond", cond_, "or its text states: safetensors with embeddings");
  t.add("output_path", output_path_, "image.png, or .safetensors for the latent");
  t.add("num_inference_steps", steps_, "steps", 1);
  t.add("seed", seed_, "of the noise");
  t.add("text_encoder", text_encoder_, "where the teacher's folder has none");
  t.add("tokenizer", tokenizer_, "the same for tokenizer.json or spiece.model");
  t.add("vae", vae_, "the same for the VAE");
  constexpr std::string_view kMachine[] = {"device", "gpu", "ram", "ignore_limits", "json"};
  t.add(machine_, kMachine);
  return t;
}

std::string StudentSample::flags_help() {
  std::vector<std::string> notes;
  return flags(notes).help();
}

std::vector<train::FlagInfo> StudentSample::flag_infos() {
  std::vector<std::string> notes;
  return flags(notes).honoured();
}

bool StudentSample::takes(const std::vector<std::string>& arguments) {
  const bool asked = std::ranges::any_of(arguments, [](const std::string& a) {
    return a == kModelFlag || a.starts_with(std::string(kModelFlag) + "=");
  });
  if (!asked) return false;
  std::vector<std::string> notes;
  const train::FlagTable table = flags(notes);
  table.read(train::split_arguments(arguments, table.switches()).settings);
  return true;
}

std::optional<train::PromptPart> StudentSample::prompt_part(const wan::Config& model,
                                                            const Budget& budget) const {
  if (!cond_.empty()) return std::nullopt;
  infer::ModelFiles files;
  if (!teacher_path_.empty()) files = infer::find_model_files(teacher_path_);
  if (!text_encoder_.empty()) {
    files.text_encoder = infer::model_path(text_encoder_);
  } else {
    infer::require_one(files.text_encoder_choices, "text encoder", "--text_encoder FILE");
  }
  const std::string encoder = files.text_encoder;
  if (!tokenizer_.empty()) {
    files.tokenizer = resolve_model_path(tokenizer_, HubUse::tokenizer).path;
  }
  if (files.tokenizer.empty()) files.tokenizer = infer::stored_tokenizer(encoder);
  const std::string tokenizer = files.tokenizer;
  if (prompt_.empty() || encoder.empty() || tokenizer.empty()) {
    fail(ErrorCode::usage,
         fmt::format("there is no {}", prompt_.empty()   ? "prompt"
                                       : encoder.empty() ? "text encoder"
                                                         : "tokenizer"),
         {{"--prompt TEXT --teacher_path FOLDER", "the folder holds encoder and tokenizer"},
          {"--cond FILE", "or the prompt's text states: safetensors with embeddings"}});
  }
  infer::TextEncoderOptions options;  // on the CPU
  options.budget.host = budget.host;
  options.budget.ram_limit = budget.ram_limit;
  return train::PromptPart(encoder, tokenizer, {prompt_}, model, options);
}

void StudentSample::run() {
  const train::RunTarget target = train::this_machine(machine_);
  const Budget budget = train::resolve_budget(target, machine_);
  const student::StudentFiles files(model_path_);
  const student::Config& c = files.config();
  std::string vae = infer::model_path(vae_);
  if (vae.empty() && !teacher_path_.empty()) {
    const infer::ModelFiles teacher = infer::find_model_files(teacher_path_);
    if (!output_path_.ends_with(".safetensors")) {
      infer::require_one(teacher.vae_choices, "VAE", "--vae FILE");
    }
    vae = teacher.vae;
  }
  const bool gpu = target.backend.device == Device::cuda;
  // What can be wrong is said before anything is computed.
  const infer::VideoCodecOptions decoding = {.device = target.backend.device, .budget = budget};
  infer::student_steps(steps_);
  const auto decoder = infer::check_student_sample(c, model_path_, vae, decoding, output_path_);
  wan::Config reader;  // of the text
  reader.name = "the student";
  reader.text_dim = c.text_dim;
  auto prompt = prompt_part(reader, budget);
  std::vector<float> latent;
  nlohmann::ordered_json result;
  {
    student::Job job = {.config = c, .trains = false};
    job.precision = precision_on(target.backend.device);
    std::vector<infer::CommandPart> parts = {infer::student_part(
        infer::student_request(job, steps_, target.backend, target.profile, budget), model_path_)};
    if (prompt) parts.push_back(prompt->part());
    if (decoder) parts.push_back(*decoder);
    const fit::PlannedRun planned = [&] {
      std::vector<fit::PlannedRun> plans = require_plans(parts, nullptr, {.json = machine_.json});
      plans.front().set = {};  // it is recorded again, with kernels
      return std::move(plans.front());
    }();
    ProgramSet set;
    set.backend = target.backend;
    const student::Student student(set, std::move(job));
    const MemoryPlan plan = plan_memory(set);
    const std::vector<float> rows =
        prompt ? std::move(prompt->run().at(0)) : read_text_states(cond_, reader);
    prompt.reset();
    std::vector<float> text(to_size(c.text_dim));
    infer::mean_rows(rows, std::ssize(rows) / c.text_dim, text);
    Runner runner(set, plan);
    if (!gpu) ops::warm_up_blas(runner.compute_threads());
    for (const student::Parameter& p : student.parameters()) {
      const std::vector<float> values = files.values(p.name);
      runner.write(p.value, std::as_bytes(std::span(values)));
    }
    latent = infer::StudentSampler(student, runner)
                 .run(text, steps_, static_cast<std::uint64_t>(seed_), 0);
    const Bytes on_device = planned.needed(Tier::device);
    const Bytes ram = planned.needed(Tier::host) + (gpu ? Bytes{} : on_device);
    for (const Tier t : {Tier::device, Tier::host}) {
      result[std::string(name_of(t))] = {
          {"planned_bytes", plan.peak_of(t).count},
          {"used_bytes", runner.high_water(t).count},
          {"needed_bytes", (t == Tier::device ? on_device : ram).count}};
    }
    if (!machine_.json) {
      print(gpu ? fmt::format("student: {} of GPU memory and {} of RAM planned\n", on_device, ram)
                : fmt::format("student: {} of RAM planned\n", ram));
    }
  }
  const std::string path = infer::save_student_sample(latent, c, vae, decoding, output_path_);
  result["outputs"] = nlohmann::ordered_json::array({path});
  print(machine_.json ? result.dump(2) + "\n" : fmt::format("wrote {}\n", path));
}

}  // namespace ballast
