#!/usr/bin/env bash
# Shows what Ballast does, from a fresh checkout: sets up, builds, then pre-trains a small model,
# trains a LoRA on it inside less memory than its weights take, is refused, is killed, resumes.
# Exits 0 when everything was as it should be. What it made stays in build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/build.sh release ballast_cli moving_shapes
root=$PWD
work=$root/build/demo
rm -rf "$work"
mkdir -p "$work"
cp examples/moving_shapes/{base,lora}.toml "$work"
cd "$work"
export PATH=$root/build/release/bin:$PATH XDG_STATE_HOME=$work/state
unset BALLAST_WEBHOOK_URL

heading() { printf '\n\n== %s\n\n' "$1"; }
show() { # command...: as typed, then its output
  printf '$ %s\n' "${*//$root\//}"
  "$@" 2>&1
}
newest() { ls -d "$1"/*/ | tail -n 1 | sed 's|/$||'; } # folder of runs: its last one
fail() {
  printf 'demo: %s\n' "$1" >&2
  exit 1
}
# Of a plan the head and the totals, of a run everything.
shortened() { sed '/^phase  /,/^outside the arenas/{/^outside/!d}; /^outside/,/^$/d'; }

heading "1. A small transformer of Wan's shape, and clips of moving shapes, made from a seed"
show moving_shapes .
for set in base_motions new_motion held_out; do
  printf '%3d clips in %-12s e.g. "%s"\n' "$(ls $set/latents | wc -l)" $set \
    "$(grep -aom1 '"caption":"[^"]*' $set/text/clip-001.safetensors | cut -d'"' -f4)"
done
weights=$(stat -c %s start.safetensors)
printf 'the transformer has %d.%02d MB of weights\n' $((weights / 1000000)) $((weights / 10000 % 100))

heading "2. Pre-training: every weight, AdamW, on the four drifting motions"
show ballast train base.toml | shortened
cp "$(newest runs/base)"/epoch*/model.safetensors base.safetensors

heading "3. A LoRA of the new motion in 3 MB of device memory: refused before anything is read"
refused=0
show ballast train lora.toml --gpu 3MB || refused=$?
echo "exit code $refused"
[ "$refused" -eq 3 ] || fail "expected exit code 3"

heading "4. In 6 MB, less than the weights alone: they are streamed from the file"
[ "$weights" -gt 6000000 ] || fail "the weights would fit"
show ballast train lora.toml --output_dir runs/streamed | shortened

heading "5. The same run, killed with -9 in the middle"
echo '$ ballast train lora.toml --output_dir runs/killed'
ballast train lora.toml --output_dir runs/killed >killed.log 2>&1 &
victim=$!
until [ "$(cat runs/killed/*/run_log.jsonl 2>/dev/null | grep -c '"kind":"step"')" -ge 50 ]; do
  kill -0 $victim 2>/dev/null || { cat killed.log; fail "the run ended before it could be killed"; }
  sleep 0.05
done
kill -9 $victim
{ wait $victim || true; } 2>/dev/null
grep -h '^ballast: step' killed.log
echo "killed after $(cat runs/killed/*/run_log.jsonl | grep -c '"kind":"step"') steps"
echo
show ballast doctor runs/killed --no-disk-trial | sed '/^this machine/,$d'
show ballast train lora.toml --output_dir runs/killed --resume | sed -n '1p; /^ballast:/p; /^finished/,$p'

heading "6. The same run with all weights resident, and the bits of all three"
show ballast train lora.toml --output_dir runs/resident --gpu 60MB |
  sed -n '1p; /^policy/p; /^finished/,$p'
for run in streamed killed resident; do
  sha256sum "$(newest runs/$run)/epoch5/adapter_model.safetensors"
done | tee sums
[ "$(cut -d' ' -f1 sums | sort -u | wc -l)" -eq 1 ] || fail "the LoRA files differ"
echo "the LoRA files are identical: neither the kill nor the memory policy changed a bit"

heading "7. Memory, planned against measured"
python3 - runs/streamed runs/killed runs/resident <<'PYTHON'
import json
import pathlib
import sys

print(f"{'run':<10}{'':>17}{'device arena':>14}{'host arena':>14}{'process':>14}   bytes")
for folder in map(pathlib.Path, sys.argv[1:]):
    log = sorted(folder.glob("*/run_log.jsonl"))[-1]
    steps = [e for e in map(json.loads, log.open()) if e["kind"] == "step"]
    planned = steps[-1]["memory"]["planned"]
    most = {t: max(s["memory"]["measured"][t] for s in steps) for t in planned}
    for word, numbers in (("planned", planned), ("measured at most", most)):
        name = folder.name if word == "planned" else ""
        print(f"{name:<10}{word:>17}" + "".join(f"{numbers[t]:>14,}" for t in ("device", "host", "ram")))
    if any(most[t] > planned[t] for t in planned):
        sys.exit(f"demo: {folder} used more than planned")
PYTHON

heading "8. What the LoRA has learned: loss on clips it has not seen"
python3 - "$(newest runs/streamed)/run_log.jsonl" <<'PYTHON'
import json
import sys

losses = [e["loss"] for e in map(json.loads, open(sys.argv[1])) if e["kind"] == "eval"]
share = losses[-1] / losses[0]
print(f"pre-trained base      {losses[0]:.4f}")
print(f"base with the LoRA    {losses[-1]:.4f}   {share:.0%} of it, at most 60 % wanted")
if not share <= 0.6:
    sys.exit("demo: the LoRA has not learned enough")
PYTHON

heading "9. The numbers are those of the reference implementation, under every memory policy"
show ballast verify "$root/tests/golden/dit_lora.safetensors" --policy all | sed 's, *\(worst tensor\|grad\..*\)$,,'

heading "10. The same planner on a 14B model: a LoRA on a 24 GB card with 32 GB of RAM"
show ballast plan --model wan2.2-i2v-a14b --mode lora --target rtx4090 --frames 25 --height 512 \
  --width 512 --gpu 24GB --ram 32GB | shortened

heading "Done"
printf 'The report of the LoRA run, a page to open in a browser:\n  %s\n' "$work/$(newest runs/streamed)/report.html"
