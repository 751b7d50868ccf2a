#include "train/config/distill_config.h"

#include "core/error.h"
#include "core/nearest_name.h"
#include "train/config/enum_names.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;
using student::TeacherPlacement;

template <class T>
struct EnumName {
  std::string_view name;
  T value;
};

template <class T, std::size_t N>
T meaning(const Setting& s, const EnumName<T> (&words)[N]) {
  std::vector<std::string_view> known;
  for (const EnumName<T>& w : words) {
    if (s.text() == w.name) return w.value;
    known.push_back(w.name);
  }
  s.fail_value(fmt::format("one of {}{}", joined(known), suggestion(s.text(), known)));
}

constexpr EnumName<TeacherPlacement> kPlaces[] = {
    {"auto", TeacherPlacement::automatic}, {"balanced", TeacherPlacement::automatic},
    {"gpu0", TeacherPlacement::device},    {"cpu", TeacherPlacement::host},
    {"disk", TeacherPlacement::disk},      {"cpu_compute", TeacherPlacement::processors}};
constexpr EnumName<WeightFormat> kTeacherTypes[] = {
    {"float32", WeightFormat::f32},         {"float16", WeightFormat::f16},
    {"bfloat16", WeightFormat::bf16},       {"fp8", WeightFormat::f8_e4m3_rows},
    {"float8", WeightFormat::f8_e4m3_rows}, {"stored", WeightFormat::stored}};
constexpr EnumName<DType> kStudentTypes[] = {{"float32", DType::f32}, {"bfloat16", DType::bf16}};

FlagTable flags_of(DistillConfig& c) {
  FlagTable t(&c.notes);
  t.add("teacher_path", c.teacher_path,
        "folder of Wan2.2-T2V-A14B (published or diffusers), or a transformer's file");
  t.add("student_config", c.student_config, "JSON with the student's sizes");
  t.add("data_path", c.data_path, "text file, one prompt per line");
  t.add("output_dir", c.output_dir, "where the student and the runs go");
  t.add("batch_size", c.batch_size, "samples that share a visit of the teacher", 1);
  t.add("num_steps", c.num_steps, "optimizer steps at most", 1);
  t.add("num_epochs", c.num_epochs, "times through the prompts at most", 1);
  t.add("lr", c.lr, "learning rate of AdamW");
  t.add("gradient_checkpointing", c.gradient_checkpointing,
        "blocks of the student keep their input alone (chosen anyway where it must be)");
  t.add("teacher_on_cpu", Takes::nothing, "the same as --teacher_device_strategy cpu",
        [&c](const Setting& s) {
          if (!s.off) c.place = TeacherPlacement::host;
        });
  t.add("teacher_device_strategy", Takes::one,
        "where the teacher is: gpu0 (stays on the GPU), cpu (RAM, streamed), disk (its file, "
        "streamed), cpu_compute (RAM, and the processors compute), auto or balanced "
        "(the fastest that fits)",
        [&c](const Setting& s) { c.place = meaning(s, kPlaces); });
  t.add("teacher_dtype", Takes::one,
        "float32, float16, bfloat16 or fp8: matrices are converted while they are read (default: "
        "as the file has them)",
        [&c](const Setting& s) { c.teacher_dtype = meaning(s, kTeacherTypes); });
  t.add("student_dtype", Takes::one,
        "float32 or bfloat16: what the student computes in; its weights are f32 (default: bfloat16 "
        "on a GPU)",
        [&c](const Setting& s) { c.student_dtype = meaning(s, kStudentTypes); });
  t.add("mixed_precision", Takes::nothing, "the same as --student_dtype bfloat16",
        [&c](const Setting& s) {
          if (!s.off) c.student_dtype = DType::bf16;
        });
  t.add("save_samples", c.save_samples, "draw samples of the student");
  t.add("sample_dir", c.sample_dir, "where they go (default: OUTPUT_DIR/samples)");
  t.add("sample_prompts", c.sample_prompts, "their prompts (default: the first two)");
  t.add("sample_interval", c.sample_interval, "epochs between samples", 1);
  t.add("sample_steps", c.sample_steps, "steps of a sample", 1);
  t.add("literal", c.literal,
        "as the reference does it: the teacher sees zeros where channels differ, all of in_proj "
        "comes from the teacher's q, --teacher_dtype converts nothing");
  t.add("text_encoder", c.text_encoder, "where the teacher's folder has none");
  t.add("tokenizer", c.tokenizer, "the same for tokenizer.json or spiece.model");
  t.add("vae", c.vae, "the same for the VAE, which samples are decoded with");
  t.add("text_states", c.text_states,
        "folder of encoded prompts (default: OUTPUT_DIR/text_states)");
  t.add("seed", Takes::one, "of weights, noise, times and order",
        [&c](const Setting& s) { c.seed = static_cast<std::uint64_t>(s.integer()); });
  t.add("gradient_accumulation_steps", c.gradient_accumulation, "batches of an optimizer step", 1);
  t.add("max_grad_norm", c.max_grad_norm, "gradients longer than this are shortened (0: never)");
  t.add("weight_decay", c.optimizer.weight_decay, "of AdamW");
  t.add("optimizer", Takes::one, "adamw, stableadamw, adamw8bit, adafactor, sgd",
        [&c](const Setting& s) {
          const auto kind = find_optimizer(s.text());
          if (!kind)
            s.fail_value("one of adamw, adamw_optimi, stableadamw, adamw8bit, adafactor, sgd");
          c.optimizer.kind = *kind;
        });
  t.add("lr_scheduler", Takes::one, "constant, linear, cosine, constant_with_warmup, ...",
        [&c](const Setting& s) {
          const auto kind = find_schedule(s.text());
          if (!kind) s.fail_value("constant, linear, cosine, constant_with_warmup or polynomial");
          c.schedule.kind = *kind;
        });
  t.add("lr_warmup_steps", c.schedule.warmup_steps, "steps in which the rate grows");
  t.add("checkpoint_steps", c.checkpoint_steps, "steps between checkpoints (0: one at the end)");
  t.add("keep_checkpoints", Takes::one, "that are kept", [&c](const Setting& s) {
    const std::int64_t n = s.integer();
    if (n < 1 || n > 1000) s.fail_value("1 to 1000");
    c.keep_checkpoints = static_cast<int>(n);
  });
  t.add("logging_steps", c.logging_steps, "steps between lines", 1);
  t.add("resume", Takes::maybe_one, "continue the newest run of OUTPUT_DIR, or the one named",
        [&c](const Setting& s) { c.resume = s.values.empty() ? "" : s.values[0]; });
  t.add("gpu", c.gpu, "GPU memory that may be used, for example 6GB");
  t.add("ram", c.ram, "RAM, pinned memory included");
  t.add("disk", c.disk, "space for what is kept there");
  t.add("device", c.device, "auto, cpu or cuda");
  t.add("verify_weights", c.verify_weights, kVerifyHelp);
  t.add("plan", c.plan_only, "print the plan and end");
  t.ignore("num_workers", Takes::one, "batches are made while the teacher computes");
  t.ignore("multi_gpu", Takes::nothing, "one GPU is used");
  t.ignore("distributed", Takes::nothing, "one process runs");
  t.ignore("local_rank", Takes::one, "one process runs");
  ignore_launcher_flags(t);
  return t;
}

}  // namespace

std::string distill_flags_help() {
  DistillConfig c;
  return flags_of(c).help();
}

DistillConfig read_distill_config(const std::vector<std::string>& arguments) {
  DistillConfig c;
  const FlagTable table = flags_of(c);
  const CommandLine line = split_arguments(arguments, table.switches());
  if (!line.config.empty()) {
    fail(ErrorCode::usage, fmt::format("{}: expected flags only", printable(line.config)),
         {{"ballast distill --help", "lists them"}});
  }
  table.read(line.settings);
  c.arguments = arguments;
  const auto require = [](const std::string& value, const char* flag, const char* what) {
    if (value.empty()) fail(ErrorCode::usage, fmt::format("{} is missing", flag), {{flag, what}});
  };
  require(c.teacher_path, "--teacher_path", "folder of the teacher, Wan2.2-T2V-A14B");
  require(c.student_config, "--student_config", "JSON with the student's sizes");
  require(c.data_path, "--data_path", "text file with a prompt on each line");
  c.schedule.learning_rate = c.lr;
  if (c.sample_dir.empty()) c.sample_dir = c.output_dir + "/samples";
  if (c.text_states.empty()) c.text_states = c.output_dir + "/text_states";
  return c;
}

}  // namespace ballast::train
