#!/usr/bin/env bash
# scripts/build.sh [preset] [targets...]
# Configures and builds; without targets the program, at build/<preset>/bin/ballast. The presets are
# release (the default), cpu (without CUDA), debug, asan, tsan and fuzz; the target "tests" adds the
# tests, "all" the benchmarks too. The last line says whether CUDA is built, and why not.
# BALLAST_JOBS limits the compilers that run at once.
set -euo pipefail
cd "$(dirname "$0")/.."

# On a miss ccache then need not preprocess a source before the compiler does.
export CCACHE_DEPEND=${CCACHE_DEPEND:-1}
# Paths relative to the build folder, so that presets share what they compile alike.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}

preset=${1:-release}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(ballast_cli)

log=build/$preset/configure.log
mkdir -p "build/$preset"
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build "build/$preset" --parallel "${BALLAST_JOBS:-$(nproc)}" --target "${targets[@]}"
cat "build/$preset/cuda_status.txt"
