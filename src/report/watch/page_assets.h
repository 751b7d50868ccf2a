#pragma once

#include <string_view>

namespace ballast {

// The files of src/report/page, compiled in (cmake/embed.cmake).
extern const std::string_view kPageHtml, kPageScript, kPageStyle, kPageIcon;

}  // namespace ballast
