#!/bin/sh
# ./install.sh [--prefix FOLDER] [--remove]
# Copies this folder's program, library, manual pages and completions to FOLDER (/usr/local), or removes
# what it copied there. scripts/release.sh puts it into the tarball.
set -eu

prefix=/usr/local
remove=no
while [ $# -gt 0 ]; do
  case $1 in
  --prefix) prefix=${2:?--prefix needs a folder} && shift ;;
  --prefix=*) prefix=${1#--prefix=} ;;
  --remove) remove=yes ;;
  *) echo "install.sh: unknown option $1: known are --prefix FOLDER and --remove" >&2 && exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
find bin lib share \( -type f -o -type l \) | sort | while read -r file; do
  target=$prefix/$file
  if [ $remove = yes ]; then
    rm -f "$target"
    folder=$(dirname "$file")
    while [ "$folder" != . ]; do # up to the prefix, while they are empty
      rmdir "$prefix/$folder" 2>/dev/null || break
      folder=$(dirname "$folder")
    done
  else
    mkdir -p "$(dirname "$target")"
    cp -P "$file" "$target.new"
    mv -f "$target.new" "$target"
  fi
done
if [ $remove = yes ]; then
  echo "removed from $prefix"
else
  echo "installed in $prefix: $prefix/bin/ballast"
fi
