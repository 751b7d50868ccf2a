#!/usr/bin/env bash
# scripts/fuzz.sh [--no-build] [--json FILE] [seconds] [targets...]
# Builds all fuzz targets (tests/fuzz) and runs them for so many seconds together (120), one process per
# processor. Ends with a table; exits 1 where a target found something. Inputs that reached new code are
# kept in build/fuzz/corpus, findings in build/fuzz, what targets print in build/fuzz/logs.
#   --no-build   runs what is in build/fuzz/bin: also on a machine without a compiler
#   --json FILE  writes the table as JSON; tools/fuzz_table.py puts it into docs/reliability.md
# BALLAST_JOBS limits the processes; with BALLAST_FUZZ_SEED inputs are not drawn at random.
set -euo pipefail
cd "$(dirname "$0")/.."

build=yes
json=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --no-build) build=no ;;
    --json)
      json=${2:?--json needs a file}
      shift
      ;;
    *)
      sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
      exit 2
      ;;
  esac
  shift
done
seconds=${1:-120}
shift || true
jobs=${BALLAST_JOBS:-$(nproc)}

if [ $build = yes ]; then
  scripts/build.sh fuzz fuzz_targets
  # For machines to which the programs are copied without the repository.
  git rev-parse --short HEAD >build/fuzz/bin/commit 2>build/fuzz/git.log || echo unknown >build/fuzz/bin/commit
fi

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for program in build/fuzz/bin/*_fuzz; do
    name=${program##*/}
    targets+=("${name%_fuzz}")
  done
fi

# Files that targets read lie in memory where the machine has a place for that.
place=$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)" ballast_fuzz.XXXXXX)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$place"' EXIT
trap 'exit 130' INT TERM
logs=build/fuzz/logs
rm -rf "$logs"
mkdir -p "$logs"

# The leak check needs ptrace, which containers may forbid.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}
if ! TMPDIR=$place "build/fuzz/bin/${targets[0]}_fuzz" -runs=1 >"$logs/probe" 2>&1 &&
  grep -q LeakSanitizer "$logs/probe"; then
  echo "fuzz: no leak check, ptrace is not allowed here"
  ASAN_OPTIONS+=:detect_leaks=0
fi

# A target has one process, several where there are more processors than targets. Those of one target
# share a corpus.
workers=$((jobs / ${#targets[@]}))
((workers > 0)) || workers=1
processes=$((workers * ${#targets[@]}))
each=$((seconds * jobs / processes))
((each <= seconds)) || each=$seconds
((each > 0)) || each=1

fuzz() { # target worker
  local name=$1 options=()
  local corpus=build/fuzz/corpus/$name seeds=tests/fuzz/corpus/$name
  mkdir -p "$corpus"
  [ ! -f "tests/fuzz/$name.dict" ] || options+=("-dict=tests/fuzz/$name.dict")
  [ -z "${BALLAST_FUZZ_SEED:-}" ] || options+=("-seed=$((BALLAST_FUZZ_SEED + $2))")
  TMPDIR=$place "build/fuzz/bin/${name}_fuzz" -max_total_time="$each" -entropic=0 -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=128 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" "${options[@]}" \
    "$corpus" "$seeds" >"$logs/$name.$2.log" 2>&1 || touch "$logs/$name.$2.failed"
}

echo "fuzz: ${#targets[@]} targets, $processes processes of $each s, $jobs at a time"
for name in "${targets[@]}"; do
  for ((worker = 0; worker < workers; ++worker)); do
    while (($(jobs -pr | wc -l) >= jobs)); do wait -n || true; done
    fuzz "$name" "$worker" &
  done
done
wait

# The last number behind a word in the logs of a target, "sum" or "max" over its processes.
number() { # target word how
  awk -v word="$2" -v how="$3" '
    function add() { total = how == "sum" ? total + last : (last > total ? last : total); last = 0 }
    FNR == 1 { add() }
    match($0, word " *[0-9]+") {
      text = substr($0, RSTART, RLENGTH)
      sub(/.*[^0-9]/, "", text)
      last = text + 0
    }
    END { add(); printf "%d", total }' "$logs/$1".*.log
}

failed=0
rows=()
printf '\n%-24s %14s %10s %9s %9s\n' target executions per_s coverage findings
for name in "${targets[@]}"; do
  executions=$(number "$name" 'number_of_executed_units:' sum)
  rate=$(number "$name" 'average_exec_per_sec:' sum)
  coverage=$(number "$name" 'cov:' max)
  findings=$(find "$logs" -name "$name.*.failed" | wc -l)
  printf '%-24s %14d %10d %9d %9d\n' "$name" "$executions" "$rate" "$coverage" "$findings"
  rows+=("$(printf '{"target": "%s", "executions": %d, "per_second": %d, "coverage": %d, "findings": %d}' \
    "$name" "$executions" "$rate" "$coverage" "$findings")")
  if ((findings > 0)); then
    failed=1
    tail -n 30 "$logs/$name".*.log >&2
  fi
done
if [ -n "$json" ]; then
  {
    printf '{"date": "%s", "commit": "%s", "targets": [\n' "$(date -u +%F)" "$(cat build/fuzz/bin/commit)"
    for ((i = 0; i < ${#rows[@]}; ++i)); do
      printf '  %s%s\n' "${rows[i]}" "$( ((i + 1 < ${#rows[@]})) && echo ,)"
    done
    printf ']}\n'
  } >"$json"
fi
exit $failed
