#!/usr/bin/env bash
# Kills a small training run with -9 at so many random points (1,000 unless told), resumes it each
# time and compares what it ends with to the bit:
#   scripts/kill_resume.sh [KILLS]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh release test_e2e
cd build/release
BALLAST_KILLS="${1:-1000}" bin/test_e2e \
  --gtest_filter=KillAndResume.EndsInTheBitsOfAnUninterruptedRun
