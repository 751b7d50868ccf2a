#pragma once

#include <cstdint>

#include "core/parse_enum.h"

namespace ballast::train {

enum class ScheduleKind : std::uint8_t {
  constant,
  linear,
  cosine,
  constant_with_warmup,
  cosine_with_restarts,
  polynomial,
  inverse_sqrt,
  cosine_with_min_lr,
  warmup_stable_decay,
  rex,
  piecewise_constant,
};
inline constexpr std::array<EnumName<ScheduleKind>, 11> kScheduleNames = {{
    {"constant", ScheduleKind::constant},
    {"linear", ScheduleKind::linear},
    {"cosine", ScheduleKind::cosine},
    {"constant_with_warmup", ScheduleKind::constant_with_warmup},
    {"cosine_with_restarts", ScheduleKind::cosine_with_restarts},
    {"polynomial", ScheduleKind::polynomial},
    {"inverse_sqrt", ScheduleKind::inverse_sqrt},
    {"cosine_with_min_lr", ScheduleKind::cosine_with_min_lr},
    {"warmup_stable_decay", ScheduleKind::warmup_stable_decay},
    {"rex", ScheduleKind::rex},
    {"piecewise_constant", ScheduleKind::piecewise_constant},
}};
inline std::string_view name_of(ScheduleKind k) { return enum_name(kScheduleNames, k); }
// Which trainer's formula. W warm-up steps, T total steps, k steps done.
enum class ScheduleStyle : std::uint8_t {
  diffusion_pipe,    // warm-up 1/W + (1 - 1/W) k/W; then the schedule from its own k = 0 over T
                     // steps; the cosine ends at min_rate
  transformers,      // warm-up k/W, so the first step does nothing; then over T - W steps; constant
                     // has no warm-up
  per_epoch_cosine,  // flow-matching trainer: a cosine down to min_rate that moves once per epoch,
                     // whatever kind is; no warm-up
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  ScheduleStyle style = ScheduleStyle::diffusion_pipe;
  double learning_rate = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  std::int64_t decay_steps = 0;      // warmup_stable_decay: length of the decay
  std::int64_t steps_per_epoch = 0;  // per_epoch_cosine
  double min_rate = 1e-6;     // absolute floor of diffusion_pipe's and per_epoch_cosine's cosine
  double min_rate_ratio = 0;  // cosine_with_min_lr, warmup_stable_decay, rex
  double cycles = 1;     // cosines: half waves (cosine, cosine_with_min_lr, warmup_stable_decay),
                         // restarts (cosine_with_restarts)
  double power = 1;      // polynomial, which ends at a rate of 1e-7
  double timescale = 0;  // inverse_sqrt; 0: the warm-up steps, 10000 without
  // piecewise_constant: factors on the rate while fewer steps than this are done, rising; the last
  // one is for all others. No warm-up.
  struct Piece {
    std::int64_t until = 0;
    double factor = 1;
  };
  std::vector<Piece> pieces = {};
};

// "1:100,0.1:200,0.01" as diffusers writes them; nothing: it makes no sense.
std::optional<std::vector<ScheduleOptions::Piece>> step_rules_of(std::string_view text);

// Learning rate of the next optimizer step when `done` of them were made. Past the end it stays
// where the schedule ended. Fails (usage) when a number the kind needs is missing.
double learning_rate(const ScheduleOptions& o, std::int64_t done);

}  // namespace ballast::train
