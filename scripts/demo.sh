#!/usr/bin/env bash
# Shows what Ballast does, from a fresh checkout: sets up, builds, then plans, refuses, verifies and
# streams. Exits 0 when everything was as it should be.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/build.sh release ballast_cli test_e2e
ballast=build/release/bin/ballast
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

heading() { printf '\n\n== %s\n\n' "$1"; }
show() { # command...: as typed, then its output
  printf '$ %s\n' "ballast ${*:2}"
  "$@"
}

heading "1. A LoRA run of a 14B video model, planned for a 24 GB card and 32 GB of RAM"
job=(--model wan2.2-i2v-a14b --mode lora --target rtx4090)
show "$ballast" plan "${job[@]}" --frames 25 --height 512 --width 512 --gpu 24GB --ram 32GB

heading "2. A longer clip on a 4 GB card: refused, with what would help"
refused=0
show "$ballast" plan "${job[@]}" --frames 81 --height 480 --width 832 --gpu 4GB --ram 32GB || refused=$?
echo "exit code $refused"
[ "$refused" -eq 3 ]

heading "3. The same numbers as the reference implementation, under every memory policy"
echo '$ ballast verify tests/golden/*.safetensors --policy all'
if ! "$ballast" verify tests/golden/*.safetensors --policy all >"$work/verify"; then
  cat "$work/verify"
  exit 1
fi
# One line for each file and policy; shown are those of the policy that streams through one slot.
awk 'NR == 1 || $3 == "stream1" || $3 == "-"' "$work/verify"
printf '%d comparisons, %d of them ok\n' "$(($(wc -l <"$work/verify") - 1))" \
  "$(grep -c ' ok ' "$work/verify")"

heading "4. A model of 2 GB computed inside 256 MiB: planned against measured"
# Writes a random model of 2 GB to the temporary folder, computes one prediction while another thread
# watches the process's memory, and compares streamed with resident bits on a smaller model.
if ! build/release/bin/test_e2e --gtest_filter='StreamBudget.*' --gtest_brief=1 \
  --gtest_output="json:$work/stream.json" >"$work/stream.log" 2>&1; then
  cat "$work/stream.log"
  exit 1
fi
python3 - "$work/stream.json" <<'PYTHON'
import json
import sys

tests = [t for s in json.load(open(sys.argv[1]))["testsuites"] for t in s["testsuite"]]
for test in tests:
    skipped = test["result"] == "SKIPPED"
    print(f"{test['name']}: {'skipped' if skipped else 'passed'}, {test['time']}")
    for name in ("planned_arenas", "planned_lines", "measured"):
        if name in test:
            print(f"  {name.replace('_', ' '):<16} {int(test[name]):>13,} bytes")
PYTHON

heading "5. What a file is"
show "$ballast" inspect tests/golden/dit_lora.safetensors
