#!/usr/bin/env bash
# scripts/setup.sh [--lint | --python | --packages]
# Installs the packages that Ballast is built with on Debian and Ubuntu, and only those that are missing.
# Says nothing and does nothing when all are there. On other systems it prints what to install.
# --lint: also what scripts/lint.sh needs beyond a build.
# --python: also what scripts/python_test.sh needs.
# --packages: also what scripts/release.sh and scripts/package_test.sh need, and the shells whose
# completions are tested.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache python3
  libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libopenblas-serial-dev libxxhash-dev
  libcurl4-openssl-dev libmicrohttpd-dev libmicrohttpd12
  libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
  libgtest-dev libgmock-dev libbenchmark-dev libsentencepiece-dev
  clang libclang-rt-14-dev clang-format
)
[ "${1:-}" != --python ] || packages+=(python3-venv)
[ "${1:-}" != --lint ] || packages+=(clang-tidy-19) # Debian 12's default, 14, cannot parse the sources
[ "${1:-}" != --packages ] ||
  packages+=(zsh fish groff-base man-db dpkg-dev xz-utils lintian minisign debootstrap buildah python3-venv pkg-config)

# The same for systems whose packages this script does not install itself.
print_packages_elsewhere() {
  local id=""
  [ -r /etc/os-release ] && id=$(. /etc/os-release && echo " ${ID:-} ${ID_LIKE:-} ")
  case $id in
  *' fedora '* | *' rhel '*)
    cat <<'TEXT'
setup: this is not Debian or Ubuntu. On Fedora install:
  sudo dnf install gcc-c++ cmake ninja-build ccache python3 fmt-devel cli11-devel tomlplusplus-devel \
    json-devel openblas-devel openblas-static xxhash-devel libcurl-devel libmicrohttpd-devel ffmpeg-free-devel \
    gtest-devel gmock-devel google-benchmark-devel sentencepiece-devel clang compiler-rt clang-tools-extra
TEXT
    ;;
  *' arch '*)
    cat <<'TEXT'
setup: this is not Debian or Ubuntu. On Arch install:
  sudo pacman -S --needed base-devel cmake ninja ccache python fmt cli11 tomlplusplus nlohmann-json \
    openblas xxhash curl libmicrohttpd ffmpeg gtest benchmark clang compiler-rt
  The tokenizer's comparison test also wants sentencepiece (AUR); it is left out without it.
TEXT
    ;;
  *)
    echo "setup: this is not Debian, Ubuntu, Fedora or Arch. Install what these Debian packages hold:"
    echo "  ${packages[*]}"
    ;;
  esac
  echo "  These names were not tried here; scripts/build.sh names what is missing."
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  print_packages_elsewhere >&2
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
# A fresh machine may be installing updates by itself: wait for it.
apt=("${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 -qq)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
