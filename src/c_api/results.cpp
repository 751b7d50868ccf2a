#include "c_api/results.h"

namespace ballast::c_api {

Json json_of(const v1::MemoryUse& m) {
  return {{"device", m.device}, {"host", m.host}, {"disk", m.disk}, {"ram", m.ram}};
}

Json json_of(const v1::Plan& p) {
  Json advice = Json::array();
  for (const v1::Advice& a : p.advice)
    advice.push_back({{"change", a.change}, {"effect", a.effect}});
  return {{"fits", p.fits},
          {"planned", json_of(p.planned)},
          {"allowed", json_of(p.allowed)},
          {"seconds_per_step", p.seconds_per_step},
          {"policy", p.policy},
          {"text", p.text},
          {"advice", std::move(advice)},
          {"plan", Json::parse(p.json)}};
}

Json json_of(const v1::ModelInfo& i) {
  return {{"path", i.path},
          {"name", i.name},
          {"parameters", i.parameters},
          {"bytes", i.bytes},
          {"layers", i.layers},
          {"width", i.width},
          {"heads", i.heads},
          {"feed_forward", i.feed_forward},
          {"latent_channels", i.latent_channels},
          {"conditioning_channels", i.conditioning_channels},
          {"text_rows", i.text_rows},
          {"text_width", i.text_width},
          {"pixels_per_cell", i.pixels_per_cell},
          {"warnings", i.warnings}};
}

// JSON has no NaN: such numbers are null.
Json json_of(const v1::StepResult& r) {
  return {{"step", r.step},
          {"loss", r.loss},
          {"grad_norm", r.grad_norm},
          {"seconds", r.seconds},
          {"updated", r.updated}};
}

Json json_of(const v1::TrainStep& s) {
  return {{"step", s.step},
          {"total_steps", s.total_steps},
          {"epoch", s.epoch},
          {"loss", s.loss},
          {"learning_rate", s.learning_rate},
          {"grad_norm", s.grad_norm},
          {"seconds", s.seconds},
          {"planned", json_of(s.planned)},
          {"measured", json_of(s.measured)}};
}

Json json_of(const v1::TrainResult& r) {
  return {{"folder", r.folder},
          {"report", r.report},
          {"steps", r.steps},
          {"last_loss", r.last_loss},
          {"stopped", r.stopped},
          {"planned_ram", r.planned_ram},
          {"measured_ram", r.measured_ram}};
}

}  // namespace ballast::c_api
