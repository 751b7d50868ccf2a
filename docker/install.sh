#!/bin/sh
# Inside an image's last stage: installs the .deb and what it loads when it is used (FFmpeg, libcurl),
# without what those recommend, and makes the user that runs it.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
package=$(echo /packages/ballast_*.deb)
loaded=$(dpkg-deb -f "$package" Recommends | tr -d ',')
# shellcheck disable=SC2086  # a list of packages
apt-get install -y -qq --no-install-recommends ca-certificates "$package" $loaded
rm -rf /var/lib/apt/lists/* /packages
getent passwd 1000 >/dev/null || useradd --uid 1000 --create-home ballast
mkdir -p /data
chown 1000 /data
