#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/log.h"

namespace ballast {

// Writes results to stdout, at once. When the reader has gone (ballast inspect x | head, a terminal
// that was closed) the rest is dropped without a word; other failures end the run with
// ErrorCode::io.
void print(std::string_view text);

// While it lives, what this thread prints is appended to a text instead.
class CapturedOutput {
 public:
  explicit CapturedOutput(std::string& to);
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

 private:
  std::string* before_;
};

// An error whose message the user has read already: an answer that came before its advice.
struct ShownError : Error {
  using Error::Error;
};

// A message without the ids of rules that readers of files put into it:
// "a.safetensors: st.header_json: ..." is "a.safetensors: ...".
std::string without_rule_ids(std::string_view message);

// With BALLAST_PROGRESS=json in the environment: progress as lines of JSON on stderr, for programs
// that run this one: {"kind":"progress","what":"denoising","done":3,"total":20,...}.
void show_progress_as_asked();

// Progress as one line of JSON: "what", "done", "total", "unit", "ended".
std::string progress_json(const log::ProgressRecord& record);

// Where lines of text for this file are broken: the terminal's columns, else kPlainColumns.
std::size_t text_columns(std::FILE* file);

}  // namespace ballast
