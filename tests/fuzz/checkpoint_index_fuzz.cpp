// A *.index.json. Shards of an index that is accepted are files below its folder.

#include "fuzz.h"
#include "io/utf8.h"
#include "io/weight_index.h"

namespace ballast::fuzz {

void one_input(Input input) {
  accepts([&] {
    const WeightIndex index = parse_weight_index(input.rest(), "fuzz");
    for (const auto& [name, shard] : index.weight_map) {
      require(shard < index.shards.size() && !first_invalid_utf8(name));
    }
    for (const std::string& shard : index.shards) {
      require(!shard.empty() && shard.front() != '/' && shard.find('\0') == std::string::npos);
      require(("/" + shard + "/").find("/../") == std::string::npos);
    }
  });
}

}  // namespace ballast::fuzz
