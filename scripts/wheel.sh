#!/usr/bin/env bash
# scripts/wheel.sh [preset]: builds the program and libballast.so.0 and makes the wheel ballast-ml of
# them, in build/python. The last line is its path.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
targets=(ballast_cli)
grep -q 'add_library(ballast_shared' src/CMakeLists.txt && targets+=(ballast_shared)
scripts/build.sh "$preset" "${targets[@]}"
python3 python/build_wheel.py --build "build/$preset" --output build/python
