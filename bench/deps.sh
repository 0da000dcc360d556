#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prepares what 'make report' needs: a kernel of User Mode Linux, Debian's kernel and QEMU, and Debian's
# nginx as bin/nginx. That package is unpacked, not installed, as its installation would start a
# server on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

test/kernel/build.sh 6.12 >/dev/null
test/kernel/qemu.sh -kernel 6.12 true
[ ! -x bin/nginx ] || exit 0
mkdir -p bin
if found=$(command -v nginx); then
  ln -s "$found" bin/nginx
  exit 0
fi
command -v apt-get >/dev/null || { echo "bench/deps: there is no apt-get here: please install nginx" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd "$dir" && { apt-get -qq -o APT::Sandbox::User=root download nginx || { apt-get -qq update && apt-get -qq -o APT::Sandbox::User=root download nginx; }; })
dpkg -x "$dir"/nginx_*.deb "$dir/nginx"
"$dir/nginx/usr/sbin/nginx" -v # its libraries are there
mv "$dir/nginx/usr/sbin/nginx" bin/nginx
