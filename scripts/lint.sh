#!/usr/bin/env bash
# scripts/lint.sh [--all] [--limit N]
# Checks C++ and CUDA sources; exits 1 with findings.
#   format   clang-format, over all files that git tracks
#   syntax   g++ -fsyntax-only, each file by itself: unity builds hide includes that are missing
#   tidy     clang-tidy with the checks of .clang-tidy
# Syntax and tidy look at the files that differ from the base commit, uncommitted and untracked changes
# included; a header is checked by itself, not through the files that include it. With --all they look at
# everything; clang-tidy then reads neighbouring sources together, as unity builds do, which is ten
# times faster.
# The base is BALLAST_BASE where it is set; else where the branch left origin/main or main; else, as in
# a clone that holds nothing but the change, the first parent of HEAD. Without a parent only
# the format is checked.
# Where more than --limit files changed (24, about 3 minutes on two cores), files in which only
# includes, comments or blank lines changed are left out, then a sample is drawn: the same one for the
# same base.
# BALLAST_JOBS limits the processes that run at once.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --lint
exec python3 tools/lint.py . "$@"
