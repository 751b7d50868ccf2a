#include "train/run/run_records.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "io/atomic_file.h"
#include "report/html_report.h"

namespace ballast::train {

template <class Write>
void RunRecords::keep(bool& warned, Write&& write) {
  try {
    write();
  } catch (const Error& e) {
    if (std::exchange(warned, true)) return;
    log::warn("{}; training continues, its records will have gaps", e.what());
  }
}

RunRecords::RunRecords(const std::string& folder, const RunInfo& info, std::int64_t step,
                       std::int64_t x, bool resumed, LineListener listener)
    : folder_(folder),
      log_(folder + "/" + std::string(kRunLogFile), step, std::move(listener)),
      events_(folder, resumed ? std::optional(x + 1) : std::nullopt),
      x_(x) {
  log_.run(info, step);
  if (resumed) event(step, "resume", folder);
}

void RunRecords::step(const StepRecord& record, std::int64_t x, bool shown,
                      std::span<const Scalar> more) {
  x_ = x;
  keep(log_warned_, [&] { log_.step(record); });
  if (!shown) return;
  std::vector<Scalar> scalars = {Scalar{"train/loss", static_cast<float>(record.loss)},
                                 Scalar{"train/grad_norm", static_cast<float>(record.grad_norm)},
                                 Scalar{"train/lr", static_cast<float>(record.lr)},
                                 Scalar{"train/step_seconds", static_cast<float>(record.seconds)}};
  scalars.insert(scalars.end(), more.begin(), more.end());
  keep(events_warned_, [&] { events_.scalars(x, scalars); });
}

void RunRecords::eval(std::int64_t step, const std::string& set, const EvalLosses& losses) {
  keep(log_warned_, [&] { log_.eval(step, set, losses.mean); });
  keep(events_warned_, [&] {
    for (std::size_t q = 0; q < losses.by_quantile.size(); ++q) {
      events_.scalar(x_, fmt::format("{}/loss_quantile_{:.2f}", set, kEvalQuantiles[q]),
                     losses.by_quantile[q]);
    }
    events_.scalar(x_, set + "/loss", losses.mean);
  });
}

void RunRecords::eval(std::int64_t step, const std::string& set, double loss) {
  keep(log_warned_, [&] { log_.eval(step, set, loss); });
  keep(events_warned_, [&] { events_.scalar(x_, set + "/loss", loss); });
}

void RunRecords::score(std::int64_t step, const std::string& set, const std::string& name,
                       double value) {
  keep(log_warned_, [&] { log_.score(step, name, value); });
  keep(events_warned_, [&] { events_.scalar(x_, set + "/" + name, value); });
}

void RunRecords::scalar(const std::string& name, double value) {
  keep(events_warned_, [&] { events_.scalar(x_, name, value); });
}

void RunRecords::event(std::int64_t step, std::string_view kind, std::string_view text) {
  keep(log_warned_, [&] { log_.event(step, kind, text); });
}

void RunRecords::sample(std::int64_t step, std::size_t number, const EncodedImage& image) {
  keep(events_warned_, [&] { events_.image(step, fmt::format("samples/{}", number), image); });
}

std::string RunRecords::finish(std::int64_t steps) {
  keep(log_warned_, [&] { log_.sync(); });
  keep(events_warned_, [&] { events_.sync(); });
  const std::string path = folder_ + "/report.html";
  try {
    write_text_file(path, html_report(read_run_log(log_.path(), step_stride(steps))));
    return path;
  } catch (const Error& e) {
    log::warn("no report was written: {}; `ballast report {}` makes one from the run log", e.what(),
              folder_);
    return {};
  }
}

}  // namespace ballast::train
