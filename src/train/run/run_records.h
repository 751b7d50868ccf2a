#pragma once

#include <string>
#include <string_view>

#include "report/event_file.h"
#include "report/run_log.h"
#include "train/run/evaluation.h"

namespace ballast::train {

// What a run writes down for people: its log, its TensorBoard file, its report. They must be there
// to begin with; one that cannot be written later (a full disk) is said once and does not stop the
// run. For one thread.
class RunRecords {
 public:
  // step: done so far, x: where that is in TensorBoard; resumed: earlier records are there, and
  // what they say of later steps goes.
  // listener: gets each line of the log as well.
  RunRecords(const std::string& folder, const RunInfo& info, std::int64_t step, std::int64_t x,
             bool resumed, LineListener listener = {});

  // x: where its numbers stand in TensorBoard, and what comes until the next step; shown: whether
  // they do. more: besides loss, norm, rate and seconds, for TensorBoard.
  void step(const StepRecord& record, std::int64_t x, bool shown,
            std::span<const Scalar> more = {});
  void eval(std::int64_t step, const std::string& set, const EvalLosses& losses);
  void eval(std::int64_t step, const std::string& set, double loss);
  // "rouge1" of set "eval" is eval/rouge1 in TensorBoard.
  void score(std::int64_t step, const std::string& set, const std::string& name, double value);
  void scalar(const std::string& name, double value);  // of TensorBoard alone
  void event(std::int64_t step, std::string_view kind, std::string_view text);
  // "samples/0" in TensorBoard.
  void sample(std::int64_t step, std::size_t number, const EncodedImage& image);

  // Forces all to disk and makes the page, of so many steps. Its path; empty when it could not be
  // written.
  std::string finish(std::int64_t steps);

 private:
  template <class Write>
  void keep(bool& warned, Write&& write);

  std::string folder_;
  RunLog log_;
  EventFile events_;
  std::int64_t x_;
  bool log_warned_ = false, events_warned_ = false;
};

}  // namespace ballast::train
