#!/usr/bin/env bash
# scripts/python_test.sh [pytest arguments]: tests the Python package as it is installed. Makes a
# virtual environment in build/python, installs the wheel, numpy, pytest and mypy there, checks types
# and runs python/tests. Needs python3 with venv, and PyPI the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
work=$root/build/python
packages=(numpy ml_dtypes pytest mypy)

missing() {
  printf 'python_test: %s\n' "$1" >&2
  exit 1
}

scripts/setup.sh --python
command -v python3 >/dev/null || missing "python3 is missing: apt install python3 python3-venv"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || missing "python3 is older than 3.9"
wheel=$(scripts/wheel.sh | tail -n 1)
if [ ! -x "$work/venv/bin/python" ]; then
  rm -rf "$work/venv"
  python3 -m venv "$work/venv" || missing "python3 -m venv fails: apt install python3-venv"
fi
python=$work/venv/bin/python
if ! "$python" -c 'import numpy, ml_dtypes, pytest, mypy' 2>"$work/import.log"; then
  "$python" -m pip install --quiet "${packages[@]}" ||
    missing "PyPI cannot be reached, and the environment lacks one of: ${packages[*]}"
fi
"$python" -m pip install --quiet --no-deps --force-reinstall "$wheel"

# Never the source folder: what is installed is what is tested.
cd "$work"
"$python" -m mypy --config-file "$root/python/pyproject.toml" \
  --cache-dir "$work/mypy" "$root/python/ballast" "$root/python/tests" "$root/python/build_wheel.py"
XDG_STATE_HOME=$work/state "$python" -m pytest -c "$root/python/pyproject.toml" --rootdir "$root/python" \
  -p no:cacheprovider "$root/python/tests" "$@"
