#!/usr/bin/env bash
# Shows what Ballast does, from a fresh checkout: sets up, builds, then teaches the small model of
# examples/demo_model a shape that it has never seen, inside less memory than its weights take. On
# the way it is refused, killed and resumed. Ends with clips from before and after, and exits 0 when
# everything was as it should be. What it made stays in build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/build.sh release ballast_cli demo_model
root=$PWD
work=$root/build/demo
rm -rf "$work"
mkdir -p "$work"
cp examples/demo_model/{lora,new_clips,held_out_clips}.toml examples/demo_model/prompts.txt "$work"
cp -r examples/demo_model/model "$work/model"
cd "$work"
export PATH=$root/build/release/bin:$PATH XDG_STATE_HOME=$work/state
unset BALLAST_WEBHOOK_URL

heading() { printf '\n\n== %s\n\n' "$1"; }
show() { # command...: as typed, then its output
  local word line='$'
  for word in "${@//$root\//}"; do
    [[ $word == *' '* ]] && word="'$word'"
    line+=" $word"
  done
  printf '%s\n' "$line"
  "$@" 2>&1
}
newest() { ls -d "$1"/*/ | tail -n 1 | sed 's|/$||'; } # folder of runs: its last one
fail() {
  printf 'demo: %s\n' "$1" >&2
  exit 1
}
# Without the line of a plan that names --details.
shortened() { sed '/^--details shows/d'; }
sample() { # output, more flags: four prompts, the same noise for each whatever the model
  show ballast sample --model model --prompt-file prompts.txt --negative-prompt ' ' --frames 13 \
    --width 64 --height 64 --steps 20 --shift 3 --guidance 2 --seed 7 --fps 8 --output "$@"
}

heading "1. A small text-to-video model that knows circles, squares and triangles, but no stars"
weights=$(stat -c %s model/transformer/*.safetensors)
printf 'its transformer has %d.%02d MB of weights\n\n' $((weights / 1000000)) $((weights / 10000 % 100))
sample before.gif | shortened

heading "2. Videos of stars with captions, encoded for training"
show demo_model clips new clips/new
show demo_model clips new clips/held_out --seed 2 --repeats 1
show ballast cache lora.toml --gpu 16MB

heading "3. A LoRA of them in 2 MB of compute memory: does not fit, and says so before anything is read"
refused=0
show ballast train lora.toml --gpu 2MB || refused=$?
echo "exit code $refused"
[ "$refused" -eq 3 ] || fail "expected exit code 3"

heading "4. In 5 MB, less than the weights alone: they are streamed. Killed with -9 in the middle"
[ "$weights" -gt 5000000 ] || fail "the weights would fit"
echo '$ ballast train lora.toml'
ballast train lora.toml >killed.log 2>&1 &
victim=$!
until [ "$(cat runs/lora/*/run_log.jsonl 2>/dev/null | grep -c '"kind":"step"')" -ge 150 ]; do
  kill -0 $victim 2>/dev/null || { cat killed.log; fail "the run ended before it could be killed"; }
  sleep 0.05
done
{ kill -9 $victim && wait $victim || true; } 2>/dev/null
shortened <killed.log
echo "killed after $(cat runs/lora/*/run_log.jsonl | grep -c '"kind":"step"') steps"
echo
show ballast doctor runs/lora --no-disk-trial | sed '/^this machine/,$d'
show ballast train lora.toml --resume | sed -n '1p; /^ballast:/p; /^finished/,$p'

heading "5. The same training undisturbed, with all weights resident, and the bits of both"
show ballast train lora.toml --output_dir runs/resident --gpu 60MB | sed -n '1p; /^policy/p; /^finished/,$p'
lora=$(ls -t "$(newest runs/lora)"/epoch*/adapter_model.safetensors | head -n 1)
sha256sum "$lora" "$(newest runs/resident)/${lora#"$(newest runs/lora)"/}" | tee sums
[ "$(cut -d' ' -f1 sums | sort -u | wc -l)" -eq 1 ] || fail "the LoRA files differ"
echo "the LoRA files are identical: neither the kill nor the memory policy changed a bit"

heading "6. Memory, planned against measured"
python3 - runs/lora runs/resident <<'PYTHON'
import json
import pathlib
import sys

print(f"{'run':<10}{'':>17}{'compute share':>14}{'buffers':>14}{'process':>14}   bytes")
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

heading "7. What the LoRA has learned: loss on clips of stars that it has not seen"
python3 - "$(newest runs/lora)/run_log.jsonl" <<'PYTHON'
import json
import sys

losses = [e["loss"] for e in map(json.loads, open(sys.argv[1])) if e["kind"] == "eval"]
share = losses[-1] / losses[0]
print(f"model without it   {losses[0]:.4f}")
print(f"with the LoRA      {losses[-1]:.4f}   {share:.0%} of it, at most 60 % wanted")
if not share <= 0.6:
    sys.exit("demo: the LoRA has not learned enough")
PYTHON

heading "8. The same prompts and the same noise with the LoRA"
sample after.gif --lora "$lora" | shortened
show demo_model sheet sheet.png --before before-{1,2,3,4}.gif --after after-{1,2,3,4}.gif

heading "9. The numbers are those of the reference implementation, under every memory policy"
show ballast verify "$root/tests/golden/dit_lora.safetensors" --policy all | sed 's, *\(worst tensor\|grad\..*\)$,,'

heading "10. The same planner on a 14B model: a LoRA on a 24 GB card with 32 GB of RAM"
show ballast plan --model wan2.2-i2v-a14b --mode lora --target rtx4090 --frames 25 --height 512 \
  --width 512 --gpu 24GB --ram 32GB | shortened

heading "Done"
cat <<TEXT
Look at $work/sheet.png: on the left what the model made of "a yellow star falls" and three more
prompts before the training, some other shape, since no star was in its data; on the right,
from the same noise, stars that move as the prompt says. The clips are before-*.gif and after-*.gif.
The report of the LoRA run, a page to open in a browser:
  $work/$(newest runs/lora)/report.html
TEXT
