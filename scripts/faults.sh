#!/usr/bin/env bash
# Disturbs small runs of the program in 1,800 ways and more - kills, I/O faults, full disks, memory limits,
# hostile inputs - and checks how each ends. docs/reliability.md says what must hold.
#   scripts/faults.sh                              all of it
#   scripts/faults.sh --sample 60                  a sample of all kinds
#   scripts/faults.sh --only kills --from 300      one kind, from its case 300 on
#   scripts/faults.sh --hostile                    hostile inputs only
#   scripts/faults.sh --sanitized                  hostile inputs and the jobs, with address and
#                                                  undefined-behaviour sanitizers
#   scripts/faults.sh --write docs/reliability.md  puts the table there
#   scripts/faults.sh --ranks                      one rank of a training with three, or its launcher
# More options: scripts/faults.sh --help
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --sanitized ]; then
  shift
  scripts/build.sh asan ballast_cli
  export ASAN_OPTIONS=${ASAN_OPTIONS:-strict_string_checks=1:detect_leaks=0}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
  set -- --program build/asan/bin/ballast --hostile "$@"
fi

matrix=tests/faults/matrix.py
if [ "${1:-}" = --ranks ]; then
  shift
  matrix=tests/faults/ranks.py
fi
program=
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
  case ${arguments[i]} in
    --program) program=${arguments[i + 1]:-} ;;
    --program=*) program=${arguments[i]#*=} ;;
  esac
done
if [ -z "$program" ]; then
  scripts/build.sh release ballast_cli call_fault allocation_fault
  arguments+=(--program build/release/bin/ballast)
else
  scripts/build.sh release call_fault allocation_fault
fi
# Small disks are mounted in a namespace of their own, where that is allowed.
namespace=()
if unshare --mount true 2>/dev/null; then namespace=(unshare --mount); fi
exec "${namespace[@]}" python3 $matrix --libraries build/release/lib "${arguments[@]}"
