#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/to_size.h"
#include "report/json_text.h"
#include "report/run_info.h"
#include "report/webhook.h"

namespace ballast {
namespace {

// What the chat allows, in UTF-16 code units.
constexpr std::size_t kTitle = 256, kText = 4096, kName = 256, kValue = 1024, kFields = 25;
constexpr std::size_t kAll = 6000;
constexpr std::size_t kPlain = 4000;  // of a message that is one text

// Cuts text to so many UTF-16 units with an ellipsis, and takes what it uses from `left`.
std::string cut(std::string_view text, std::size_t most, std::size_t& left) {
  most = std::min(most, left);
  std::string out;
  std::size_t units = 0, last_fit = 0;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::size_t unit = length == 4 ? 2 : 1;
    if (units + unit > most) {
      out.resize(last_fit);
      if (most > 0) out += "…";
      units = most;
      break;
    }
    out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    units += unit;
    if (units + 1 <= most) last_fit = out.size();  // room for the ellipsis behind it
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  left -= units;
  return out;
}

std::string_view name_of(WebhookMessage::Kind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"start", "progress", "sample", "warning",
                                                      "stop"};
  return kNames[to_size(kind)];
}

int color_of(WebhookMessage::Kind kind) {
  constexpr std::array<int, 5> kColors = {0x4C78A8, 0x888888, 0x59A14F, 0xE15759, 0x4C78A8};
  return kColors[to_size(kind)];
}

// "-" in place of nothing: a chat refuses empty names and values.
std::string_view filled(std::string_view text) { return text.empty() ? "-" : text; }

std::string discord(const WebhookMessage& m, double time) {
  std::size_t left = kAll;
  std::string out = "{\"allowed_mentions\":{\"parse\":[]},\"username\":\"Ballast\",\"embeds\":[{";
  out += "\"title\":";
  put_json_text(out, cut(filled(m.title), kTitle, left));
  if (!m.text.empty()) {
    out += ",\"description\":";
    put_json_text(out, cut(m.text, kText, left));
  }
  out += fmt::format(",\"color\":{},\"timestamp\":\"{}\",\"fields\":[", color_of(m.kind),
                     iso_time(time));
  for (std::size_t i = 0; i < std::min(m.fields.size(), kFields) && left >= 2; ++i) {
    if (i > 0) out += ',';
    --left;  // kept for the value
    const std::string name = cut(filled(m.fields[i].first), kName, left);
    ++left;
    out += "{\"name\":";
    put_json_text(out, name);
    out += ",\"value\":";
    put_json_text(out, cut(filled(m.fields[i].second), kValue, left));
    out += ",\"inline\":true}";
  }
  return out + "]}]}";
}

std::string slack(const WebhookMessage& m) {
  std::string text = fmt::format("*{}*", filled(m.title));
  if (!m.text.empty()) text += "\n" + m.text;
  for (const auto& [name, value] : m.fields) text += fmt::format("\n{}: {}", name, value);
  std::size_t left = kPlain;
  std::string out = "{\"text\":";
  put_json_text(out, cut(text, kPlain, left));
  return out + "}";
}

std::string generic(const WebhookMessage& m, double time) {
  std::string out = fmt::format(
      "{{\"source\":\"ballast\",\"kind\":\"{}\",\"time\":\"{}\",\"title\":", name_of(m.kind),
      iso_time(time));
  put_json_text(out, m.title);
  out += ",\"text\":";
  put_json_text(out, m.text);
  out += ",\"fields\":[";
  for (const auto& [name, value] : m.fields) {
    if (out.back() != '[') out += ',';
    out += "{\"name\":";
    put_json_text(out, name);
    out += ",\"value\":";
    put_json_text(out, value);
    out += '}';
  }
  return out + "]}";
}

}  // namespace

WebhookDialect dialect_of(std::string_view url) {
  if (url.find("/api/webhooks/") != std::string_view::npos) return WebhookDialect::discord;
  if (url.find("://hooks.slack.com/") != std::string_view::npos) return WebhookDialect::slack;
  return WebhookDialect::generic;
}

std::string webhook_payload(WebhookDialect dialect, const WebhookMessage& message,
                            double unix_seconds) {
  switch (dialect) {
    case WebhookDialect::discord:
      return discord(message, unix_seconds);
    case WebhookDialect::slack:
      return slack(message);
    default:
      return generic(message, unix_seconds);
  }
}

}  // namespace ballast
