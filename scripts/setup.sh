#!/usr/bin/env bash
# Installs the Debian packages that Ballast is built with, and only those that are missing.
# Says nothing and does nothing when all are there.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache python3
  libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libopenblas-serial-dev libxxhash-dev
  libcurl4-openssl-dev
  libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
  libgtest-dev libgmock-dev libbenchmark-dev libsentencepiece-dev
  clang libclang-rt-14-dev clang-format
)

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system, install by hand what this list names: ${packages[*]}" >&2
  exit 0
fi

installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qx "installed $package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "setup: installing ${missing[*]}" >&2
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: needs root or sudo to install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
