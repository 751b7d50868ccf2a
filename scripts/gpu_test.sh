#!/usr/bin/env bash
# scripts/gpu_test.sh [build folder]
# On a machine with a GPU, after scripts/build.sh release tests: the tests labelled gpu, the golden
# files on the device under every policy, and our own kernels under compute-sanitizer.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1:-build/release}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
step() { # name command...
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "passed $name ($((SECONDS - begin)) s)"
  else
    failed=1
    echo "FAILED $name ($((SECONDS - begin)) s)"
    tail -n 40 "$work/log"
  fi
}

step "tests labelled gpu" ctest --test-dir "$build" -L gpu --output-on-failure
for dtype in f32 bf16; do
  step "golden files in $dtype" "$build/bin/ballast" verify --device cuda --dtype "$dtype" --policy all \
    tests/golden/*.safetensors
done

# Suites of small shapes, and of their kernels ours alone: those of cuBLASLt and cuDNN are theirs to
# check, take minutes here, and racecheck breaks off in one of them. Forty times slower than without.
export BALLAST_TEST_DEVICE=cuda
suites='-*Bits*:*AttentionGraphs*:*Ref.*:*Checks.*:*Large*:*LongRun*'
for tool in memcheck racecheck; do
  step "compute-sanitizer $tool" timeout 3000 compute-sanitizer --tool "$tool" --error-exitcode 9 \
    --kernel-name kernel_substring=ballast --print-limit 20 \
    "$build/bin/test_ops" --gtest_brief=1 "--gtest_filter=$suites"
done
exit "$failed"
