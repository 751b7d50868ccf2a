#!/usr/bin/env bash
# scripts/browser_test.sh [PROGRAM]: opens the live page of a run in Chromium and checks it (tests/browser).
# Installs Debian's chromium and chromium-driver where they are missing and it may, and selenium from
# PyPI into build/browser. Screenshots are kept in build/browser/screenshots. Without its tools it says
# which is missing and exits 77: not run.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/build/browser
program=${1:-}
if [ -z "$program" ]; then
  scripts/build.sh cpu ballast_cli demo_model
  program=build/cpu/bin/ballast
fi

missing() {
  printf 'browser_test: not run: %s\n' "$1" >&2
  exit 77
}

packages=()
command -v chromium >/dev/null || packages+=(chromium)
command -v chromedriver >/dev/null || packages+=(chromium-driver)
python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null ||
    missing "missing ${packages[*]}: apt install ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null ||
    missing "apt cannot install ${packages[*]}"
fi
mkdir -p "$work"
[ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv" || missing "python3 -m venv fails: apt install python3-venv"
"$work/venv/bin/python" -c 'import selenium, prometheus_client' 2>"$work/import.log" ||
  "$work/venv/bin/python" -m pip install --quiet 'selenium>=4.25' prometheus-client ||
  missing "PyPI cannot be reached, and $work/venv lacks selenium or prometheus-client"
"$work/venv/bin/python" tests/browser/live_page_test.py "$(realpath "$program")" "$work/screenshots"
