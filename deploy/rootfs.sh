#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the image's root file system: rootfs.sh [--iptables] DIRECTORY. What is in the
# directory goes first. GOOS and GOARCH say what for, as with go build; VERSION says which
# version to call it. BINARY is one that was built before. See Dockerfile.
#
# --iptables adds what iptables mode runs: this machine's iptables, legacy and nft, with
# the libraries that they need.
set -euo pipefail

iptables=
if [[ ${1-} == --iptables ]]; then
  iptables=yes
  shift
fi
[ $# -eq 1 ] || { echo "usage: rootfs.sh [--iptables] DIRECTORY" >&2; exit 2; }
root=$(realpath -m "$1")
cd "$(dirname "$0")/.."
version=${VERSION:-$(git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo devel)}

rm -rf "$root"
mkdir -p "$root/usr/local/bin"
if [[ ${BINARY-} ]]; then
  cp "$BINARY" "$root/usr/local/bin/slipstream"
else
  CGO_ENABLED=0 "${GO:-go}" build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$version" \
    -o "$root/usr/local/bin/slipstream" ./cmd/slipstream
fi
ln -s slipstream "$root/usr/local/bin/kube-proxy"
[[ $iptables ]] || exit 0

# install FILE... puts files of this machine's where they are, links followed.
install() {
  local file
  for file; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
}

# A program that is copied runs on processors of this machine's kind only.
if [[ $("${GO:-go}" env GOARCH) != $("${GO:-go}" env GOHOSTARCH) ]]; then
  echo "rootfs.sh: --iptables: GOARCH is not this machine's, whose iptables it would be" >&2
  exit 1
fi
mkdir -p "$root/usr/sbin" "$root/run"
programs=()
for variant in legacy nft; do
  program=$(PATH=$PATH:/usr/sbin:/sbin type -P "xtables-$variant-multi") || {
    echo "rootfs.sh: --iptables: xtables-$variant-multi is not installed here (Debian's package iptables)" >&2
    exit 1
  }
  cp -L "$program" "$root/usr/sbin/"
  for command in iptables ip6tables; do
    for what in "" -save -restore; do
      ln -s "xtables-$variant-multi" "$root/usr/sbin/$command-$variant$what"
    done
  done
  programs+=("$program")
done
# The extensions are beside the libraries, in a directory that is compiled in.
extensions=("$(dirname "$(find /usr/lib /lib -name libxt_set.so -print -quit)")"/lib{xt,ipt,ip6t}_*.so)
install "${extensions[@]}"
# Extensions need libraries, too: libxt_statistic needs libm. In a line of ldd, the third word
# is a library's path, or the first is that of the dynamic loader.
mapfile -t libraries < <(ldd "${programs[@]}" "${extensions[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*[^:]$/ { print $1 }' | sort -u)
install "${libraries[@]}"
