#include "report/http_post.h"

namespace ballast {

bool http_available() { return false; }

HttpAnswer http_post(const std::string&, const std::string&, int) {
  HttpAnswer answer;
  answer.problem = "this build has no libcurl";
  return answer;
}

}  // namespace ballast
