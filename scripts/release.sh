#!/usr/bin/env bash
# scripts/release.sh [--cpu | --quick] [OUTPUT]
# Builds what users install, in OUTPUT (build/packages): three .deb packages with their symbols, a tarball,
# the wheel, ballast.spdx.json, SHA256SUMS, and SHA256SUMS.minisig where BALLAST_SIGNING_KEY names a
# minisign key. Without options the program is for every GPU it supports, and needs nvcc.
#   --cpu    without CUDA
#   --quick  as scripts/build.sh builds here, with or without CUDA: to try the packages
# SOURCE_DATE_EPOCH (default: the commit's time) is the date of all files; the same sources and compiler
# then give the same bytes. BALLAST_JOBS limits the compilers that run at once.
set -euo pipefail
cd "$(dirname "$0")/.."

# A100; RTX 30, A6000; RTX 40, L40; H100, H200, GH200; B200, and B300 by the same code; RTX 50, and what comes after
# it through its PTX. nvcc 12.8 is the first that knows sm_100 and sm_120.
architectures="80-real;86-real;89-real;90-real;100-real;120"

folder=build/distribution
options=(-DBALLAST_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
case ${1:-} in
--cpu) shift && folder=build/package-cpu && options=(-DBALLAST_CUDA=OFF) ;;
--quick) shift && folder=build/package && options=() ;;
-*) echo "release: unknown option $1: known are --cpu and --quick" >&2 && exit 2 ;;
esac
output=${1:-build/packages}

fail() {
  printf 'release: %s\n' "$1" >&2
  exit 1
}
for tool in cpack dpkg-shlibdeps python3 strip tar xz; do
  command -v "$tool" >/dev/null || fail "$tool is missing: scripts/setup.sh --packages installs it"
done
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
fi
export SOURCE_DATE_EPOCH
export CCACHE_DEPEND=${CCACHE_DEPEND:-1} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
umask 022

log=$folder/configure.log
mkdir -p "$folder"
cmake --preset package -B "$folder" "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
cmake --build "$folder" --parallel "${BALLAST_JOBS:-$(nproc)}" --target ballast_cli ballast_shared package_files
program=$folder/bin/ballast
library=$folder/lib/libballast.so.0
python3 tools/check_elf.py "$program"
version=$("$program" --version | cut -d' ' -f2)

# The folder's parts list goes into every package.
parts=()
grep -q '^CUDA: no' "$folder/cuda_status.txt" || parts=(--cuda)
doc=$folder/package_files/doc
rm -rf "$doc" "$output"
mkdir -p "$doc" "$output"
python3 scripts/sbom.py spdx "${parts[@]}" "$program" "$library" >"$doc/ballast.spdx.json"
cp "$doc/ballast.spdx.json" "$output"
output=$(cd "$output" && pwd)

cpack -G DEB --config "$folder/CPackConfig.cmake" -B "$folder/deb" >"$folder/cpack.log" 2>&1 ||
  { cat "$folder/cpack.log" >&2 && exit 1; }
cp "$folder"/deb/*.deb "$output"
# CPack lists the symbols' checksums under paths of this machine.
for symbols in "$folder"/deb/*.ddeb; do
  tree=$folder/deb/symbols
  rm -rf "$tree"
  dpkg-deb -R "$symbols" "$tree"
  (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group -Zxz -b "$tree" "$output/$(basename "${symbols%.ddeb}").deb" >/dev/null
done
rm -rf "$folder/deb"

tarball() {
  local name stage tree lib
  name=ballast-$version-linux-$(uname -m)
  stage=$folder/tarball
  tree=$stage/$name
  rm -rf "$stage"
  cmake --install "$folder" --prefix "$tree" --component program --strip >/dev/null
  cmake --install "$folder" --prefix "$tree" --component runtime --strip >/dev/null
  lib=$(dirname "$(find "$tree/lib" -name 'libballast.so.0')")
  if [ "$lib" != "$tree/lib" ]; then
    mv "$lib"/* "$tree/lib"
    rmdir "$lib"
  fi
  python3 scripts/sbom.py licenses "${parts[@]}" >"$tree/share/doc/ballast/THIRD_PARTY_LICENSES"
  cp LICENSE README.md CHANGELOG.md THIRD_PARTY.md "$tree/share/doc/ballast"
  install -m 755 scripts/install_tarball.sh "$tree/install.sh"
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --mode=u+rw,go+r,go-w,a+X -cf - "$name" | xz -6 -T1 >"$output/$name.tar.xz"
  rm -rf "$stage"
}
tarball

python3 python/build_wheel.py --build "$folder" --output "$output" --sbom "$doc/ballast.spdx.json" >/dev/null
sums=$(cd "$output" && sha256sum -- *)
printf '%s\n' "$sums" >"$output/SHA256SUMS"
if [ -n "${BALLAST_SIGNING_KEY:-}" ]; then
  command -v minisign >/dev/null || fail "minisign is missing: scripts/setup.sh --packages installs it"
  minisign -S -s "$BALLAST_SIGNING_KEY" -m "$output/SHA256SUMS" -t "ballast $version" >/dev/null
fi
cat "$folder/cuda_status.txt"
ls -l "$output"
