#include "app/completion.h"

namespace ballast {
namespace {

// Each asks the program that is being completed, so they never grow old.

constexpr const char* kBash = R"sh(# bash completion of ballast
_ballast() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    printf -v line %q "${line%%$'\t'*}"
    COMPREPLY+=("${line/#\\\~\//\~/}")
  done < <("${COMP_WORDS[0]/#~\//$HOME/}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != */ ]] || compopt -o nospace
}
complete -F _ballast ballast
)sh";

constexpr const char* kZsh = R"sh(#compdef ballast
_ballast() {
  local line program=${(Q)words[1]/#\~\//$HOME/}
  local -a plain folders described
  for line in "${(@f)$("$program" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ -z $line ]]; then continue
    elif [[ ${line%%$'\t'*} == */ ]]; then folders+=("${line%%$'\t'*}")
    elif [[ $line == *$'\t'* ]]; then described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    else plain+=("$line")
    fi
  done
  (( $#described )) && _describe -t words ballast described
  compadd -a plain
  compadd -S '' -a folders
}
if [[ $funcstack[1] == _ballast ]]; then _ballast "$@"; else compdef _ballast ballast; fi
)sh";

constexpr const char* kFish = R"sh(# fish completion of ballast
function __ballast_complete
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c ballast -f -k -a '(__ballast_complete)'
)sh";

}  // namespace

const char* completion_script(std::string_view shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  return shell == "fish" ? kFish : nullptr;
}

}  // namespace ballast
