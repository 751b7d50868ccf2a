#!/bin/sh
# Inside an image's first stage: the .deb of the program in /packages, built here or, with PACKAGES=ready,
# taken from build/packages. --cpu: without CUDA.
set -eu
mkdir -p /packages
cd /src
if [ "${PACKAGES:-build}" != ready ]; then
  rm -rf build
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends bash ca-certificates
  scripts/setup.sh
  scripts/setup.sh --packages
  scripts/release.sh "$@"
fi
cp build/packages/ballast_*.deb /packages
