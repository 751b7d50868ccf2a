#include "train/config/distill_config.h"

#include "core/error.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

FlagTable flags_of(DistillConfig& c) {
  FlagTable t(&c.notes);
  t.add_fields(c);
  t.add("teacher_on_cpu", Takes::nothing, "the same as --teacher_device_strategy cpu",
        [&c](const Setting& s) {
          if (!s.off) c.place = student::TeacherPlacement::host;
        });
  t.add("mixed_precision", Takes::nothing, "the same as --student_dtype bfloat16",
        [&c](const Setting& s) {
          if (!s.off) c.student_dtype = DType::bf16;
        });
  t.add("optimizer", Takes::one, "adamw, stableadamw, adamw8bit, adafactor, sgd",
        [&c](const Setting& s) {
          const auto kind = find_optimizer(s.text());
          if (!kind)
            s.fail_value("one of adamw, adamw_optimi, stableadamw, adamw8bit, adafactor, sgd");
          c.optimizer.kind = *kind;
        });
  t.add("lr_scheduler", Takes::one, "constant, linear, cosine, constant_with_warmup, ...",
        [&c](const Setting& s) {
          const auto kind = parse_enum(kScheduleNames, s.text());
          if (!kind) s.fail_value("constant, linear, cosine, constant_with_warmup or polynomial");
          c.schedule.kind = *kind;
        });
  constexpr std::string_view kMachine[] = {"gpu", "ram", "disk", "device", "verify_weights"};
  t.add(c.machine, kMachine);
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
