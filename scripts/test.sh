#!/usr/bin/env bash
# Builds the program and the tests, and runs all tests that need no GPU but for those that take minutes
# (ctest -L long; .ci/run runs them too). Further arguments go to ctest:
#   scripts/test.sh -R Planner
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/build.sh release tests
# Every test has a time limit of its own; this one is for the sum of them.
timeout --foreground 1200 ctest --test-dir build/release -L 'unit|golden' --output-on-failure \
  -j "${BALLAST_JOBS:-$(nproc)}" --no-tests=error "$@"
