#!/usr/bin/env bash
# scripts/release.sh
# Builds the program for every GPU it supports, at build/distribution/bin/ballast, and says how large it
# is and which GPUs are in it. CI builds for two of them, to save time.
set -euo pipefail
cd "$(dirname "$0")/.."
# A100; RTX 30, A6000; RTX 40, L40; H100, H200, GH200; B200, and B300 by the same code; RTX 50, and what comes after
# it through its PTX. nvcc 12.8 is the first that knows sm_100 and sm_120.
architectures="80-real;86-real;89-real;90-real;100-real;120"

export CCACHE_DEPEND=${CCACHE_DEPEND:-1}
folder=build/distribution
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBALLAST_CUDA=ON -DBALLAST_TESTS=OFF \
  -DBALLAST_BENCH=OFF "-DCMAKE_CUDA_ARCHITECTURES=$architectures"
cmake --build "$folder" --parallel "${BALLAST_JOBS:-$(nproc)}" --target ballast_cli
python3 tools/check_elf.py "$folder/bin/ballast"
strip -o "$folder/ballast" "$folder/bin/ballast"
echo "$folder/ballast: $(stat -c %s "$folder/ballast") bytes, for sm_${architectures//;/, sm_}"
