#!/usr/bin/env bash
# scripts/package_test.sh [--cpu]: builds what users install (scripts/release.sh --quick, or --cpu) and tries
# each in a clean room: .deb packages and tarball in a minimal Debian, the wheel in an empty environment,
# the image of docker/Dockerfile by buildah. Also: lintian, the parts list, two builds of the same bytes,
# and a signature. Needs root; the minimal Debian comes from the network once and stays in
# build/clean_rooms. Exits 77 where it cannot run, or where a tool is missing and so a part did not run.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:---quick}
root=$PWD
out=$root/build/packages
rooms=$root/build/clean_rooms
mirror=${BALLAST_DEBIAN_MIRROR:-http://deb.debian.org/debian}
model=$root/examples/demo_model/model
skipped=()

if [ "$(id -u)" -ne 0 ]; then
  echo "package_test: needs root, for chroot and buildah; nothing was tested" >&2
  exit 77
fi
work=$(mktemp -d)
clean_up() {
  rm -rf "$work"
  [ -z "${container:-}" ] || buildah "${storage[@]}" rm "$container" >/dev/null 2>&1 || true
}
trap clean_up EXIT

step() {
  printf '== %s (%d s)\n' "$1" "$SECONDS"
}
fail() {
  printf 'package_test: %s\n' "$1" >&2
  exit 1
}
have() { # tool what-is-not-tested
  command -v "$1" >/dev/null && return
  printf 'package_test: %s is missing, so %s is not tested; scripts/setup.sh --packages installs it\n' "$1" "$2" >&2
  skipped+=("$2")
  return 1
}

# What every installed program must do. $1: command prefix, $2: its model folder.
try_program() {
  local run=$1 model=$2 clip=$3
  $run --version >"$work/said" || fail "$run --version: exit status $?"
  grep -q '^ballast [0-9]' "$work/said" || fail "$run --version: $(cat "$work/said")"
  $run plan --model wan2.2-t2v-a14b --target rtx4090 --gpu 24GB --ram 64GB >"$work/said" ||
    fail "$run plan: $(cat "$work/said")"
  grep -q 'fits' "$work/said" || fail "$run plan says nothing that fits: $(cat "$work/said")"
  $run sample --model "$model" --prompt 'a red circle falls' --frames 5 --width 64 --height 64 --steps 2 --seed 7 \
    --device cpu --output "$clip" >"$work/said" 2>&1 || fail "$run sample: $(cat "$work/said")"
}
is_gif() { [ "$(head -c 4 "$1")" = GIF8 ] || fail "$1 is no GIF"; }

build() {
  step "build"
  SOURCE_DATE_EPOCH=1700000000 scripts/release.sh "$kind" "$out" >"$work/release.log" 2>&1 ||
    fail "scripts/release.sh $kind: $(tail -n 20 "$work/release.log")"
  step "again: the same bytes"
  local first
  first=$(cat "$out/SHA256SUMS")
  rm -rf build/package*/package_files build/package*/bin/ballast build/package*/lib
  SOURCE_DATE_EPOCH=1700000000 scripts/release.sh "$kind" "$work/again" >"$work/release.log" 2>&1 ||
    fail "scripts/release.sh $kind: $(tail -n 20 "$work/release.log")"
  [ "$first" = "$(cat "$work/again/SHA256SUMS")" ] ||
    fail "two builds differ: $(diff <(echo "$first") "$work/again/SHA256SUMS")"
  rm -rf "$work/again"
  (cd "$out" && sha256sum --check --quiet SHA256SUMS)
}

check_deb_files() {
  have lintian "Debian's policy" || return 0
  step "lintian"
  # Not those with symbols, which have no documents.
  lintian --allow-root --fail-on error,warning "$out"/ballast_*.deb "$out"/libballast0_*.deb "$out"/libballast-dev_*.deb ||
    fail "lintian found errors or warnings"
}

check_signature() {
  have minisign "the signature" || return 0
  step "signature"
  minisign -G -W -f -p "$work/key.pub" -s "$work/key" >/dev/null
  minisign -S -s "$work/key" -m "$out/SHA256SUMS" -x "$work/sums.minisig" >/dev/null
  minisign -V -q -p "$work/key.pub" -m "$out/SHA256SUMS" -x "$work/sums.minisig" || fail "the signature is refused"
  sed 's/^./0/' "$out/SHA256SUMS" >"$work/other"
  ! minisign -V -q -p "$work/key.pub" -m "$work/other" -x "$work/sums.minisig" 2>/dev/null ||
    fail "a signature of other sums is taken"
}

# The minimal Debian, made once; a test gets a copy.
fresh_room() {
  local cached=$rooms/bookworm.tar
  if [ ! -s "$cached" ]; then
    step "debootstrap, once"
    mkdir -p "$rooms"
    debootstrap --variant=minbase bookworm "$work/bookworm" "$mirror" >"$work/debootstrap.log" 2>&1 ||
      fail "debootstrap: $(tail -n 5 "$work/debootstrap.log")"
    chroot "$work/bookworm" apt-get clean
    tar -C "$work/bookworm" -cf "$cached.new" . && mv "$cached.new" "$cached"
    rm -rf "$work/bookworm"
  fi
  rm -rf "$work/room"
  mkdir "$work/room"
  tar -C "$work/room" -xf "$cached"
  cp -r "$model" "$work/room/model"
}
inside() { # command...: in the room, with its own /proc
  # shellcheck disable=SC2016  # for the shell in the new namespace
  unshare -m sh -c 'mount -t proc proc "$0/proc" && exec chroot "$@"' "$work/room" "$work/room" "$@"
}
files_of_room() { (cd "$work/room" && find etc usr opt root home -xdev | sort); }

try_deb() {
  have debootstrap "the .deb packages and the tarball" || return 0
  fresh_room
  step ".deb in a clean Debian"
  files_of_room >"$work/before"
  cp "$out"/ballast_*.deb "$out"/libballast0_*.deb "$work/room/tmp"
  inside sh -c 'dpkg -i /tmp/*.deb' >"$work/said" 2>&1 || fail "dpkg -i: $(cat "$work/said")"
  try_program "inside ballast" /model /tmp/clip.gif
  is_gif "$work/room/tmp/clip.gif"
  inside sh -c 'ldconfig -p' | grep -q libballast.so.0 || fail "libballast.so.0 is not found by the loader"
  inside dpkg --purge ballast libballast0 >"$work/said" 2>&1 || fail "dpkg --purge: $(cat "$work/said")"
  files_of_room >"$work/after"
  diff <(grep -v -e ld.so.cache -e '^root/' "$work/before") <(grep -v -e ld.so.cache -e '^root/' "$work/after") ||
    fail "packages left files behind"

  step "tarball in a clean Debian"
  tar -C "$work/room/root" -xf "$out"/ballast-*.tar.xz
  inside sh -c 'cd /root/ballast-* && ./install.sh --prefix /opt/ballast' >/dev/null
  try_program "inside /opt/ballast/bin/ballast" /model /tmp/tarball.gif
  is_gif "$work/room/tmp/tarball.gif"
  inside sh -c 'cd /root/ballast-* && ./install.sh --prefix /opt/ballast --remove' >/dev/null
  [ -z "$(find "$work/room/opt/ballast" -mindepth 1)" ] || fail "install.sh --remove left $(find "$work/room/opt/ballast")"
  cmp "$work/room/tmp/clip.gif" "$work/room/tmp/tarball.gif" || fail "the same seed gave another clip"
}

# Headers and libraries of the packages, as a compiler finds them.
try_development() {
  step "a program in C with libballast-dev"
  local deb
  for deb in "$out"/libballast0_*.deb "$out"/libballast-dev_*.deb; do
    dpkg-deb -x "$deb" "$work/dev"
  done
  local lib
  lib=$(dirname "$(find "$work/dev" -name libballast.so)")
  printf '%s\n' '#include <ballast/ballast_c.h>' 'int main(void) { return ballast_abi() == 0; }' >"$work/abi.c"
  local flags=("-I$work/dev/usr/include" "-L$lib" -lballast)
  if have pkg-config "ballast.pc"; then
    read -r -a flags < <(PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/dev \
      PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 pkg-config --cflags --libs ballast)
  fi
  cc -std=c99 -Wall -Wextra -Werror "$work/abi.c" "${flags[@]}" "-Wl,-rpath,$lib" -o "$work/abi"
  "$work/abi" || fail "a program with libballast.so.0 does not run"
}

try_wheel() {
  step "wheel in an empty environment"
  python3 -m venv "$work/venv" || fail "python3 -m venv fails: scripts/setup.sh --packages installs python3-venv"
  local python=$work/venv/bin/python
  "$python" -m pip install --quiet "$out"/ballast_ml-*.whl || fail "pip install needs numpy, from PyPI or PIP_FIND_LINKS"
  (cd "$work" && try_program "$work/venv/bin/ballast" "$model" "$work/wheel.gif")
  is_gif "$work/wheel.gif"
  (cd "$work" && "$python" -c 'import ballast
plan = ballast.plan("wan2.2-t2v-a14b", frames=81, height=480, width=832, gpu="24GB", ram="32GB", target="rtx4090")
assert plan.fits, plan')
  "$python" -m pip uninstall --quiet --yes ballast-ml
  [ ! -e "$work/venv/bin/ballast" ] || fail "pip uninstall left the program"
  if "$python" -m pip install --quiet spdx-tools 2>"$work/said"; then
    step "parts list"
    "$python" tests/packages/sbom_test.py 2>"$work/said" || fail "$(cat "$work/said")"
    "$work/venv/bin/pyspdxtools" -i "$out/ballast.spdx.json" || fail "ballast.spdx.json is not valid"
  else
    echo "package_test: spdx-tools cannot be had from PyPI, so ballast.spdx.json is not validated" >&2
    skipped+=("ballast.spdx.json")
  fi
}

try_image() {
  have buildah "the image" || return 0
  have debootstrap "the image" || return 0
  step "image"
  storage=(--storage-driver vfs --root "$work/storage" --runroot "$work/run")
  local base
  fresh_room
  rm -rf "$work/room/model"
  base=$(buildah "${storage[@]}" from scratch)
  buildah "${storage[@]}" copy --quiet "$base" "$work/room" / >/dev/null
  buildah "${storage[@]}" commit --quiet --rm "$base" localhost/bookworm >/dev/null
  buildah "${storage[@]}" bud --quiet --isolation chroot --pull-never --format docker --target cpu \
    --build-arg BASE=localhost/bookworm --build-arg PACKAGES=ready -t localhost/ballast \
    -f docker/Dockerfile . >"$work/said" 2>&1 || fail "docker/Dockerfile: $(tail -n 20 "$work/said")"
  container=$(buildah "${storage[@]}" from --pull-never localhost/ballast)
  local run="buildah ${storage[*]} run --isolation chroot --volume $model:/model:ro $container -- ballast"
  try_program "$run" /model /data/clip.gif
  [ "$(buildah "${storage[@]}" run --isolation chroot "$container" -- id -u)" = 1000 ] || fail "the image runs as root"
  local mount
  mount=$(buildah "${storage[@]}" mount "$container")
  is_gif "$mount/data/clip.gif"
  buildah "${storage[@]}" inspect --type image localhost/ballast >"$work/said"
  grep -q 'doctor --alive' "$work/said" || fail "the image has no health check"
}

build
check_deb_files
check_signature
try_deb
try_development
try_wheel
try_image
step "done"
if [ ${#skipped[@]} -gt 0 ]; then
  printf 'package_test: not tested: %s\n' "${skipped[@]}" >&2
  exit 77
fi
