#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the image's root file system: rootfs.sh DIRECTORY. What is in the directory goes
# first. GOOS and GOARCH say what for, as with go build; VERSION says which version to
# call it. See Dockerfile.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: rootfs.sh DIRECTORY" >&2; exit 2; }
root=$(realpath -m "$1")
cd "$(dirname "$0")/.."
version=${VERSION:-$(git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo devel)}

rm -rf "$root"
mkdir -p "$root/usr/local/bin"
CGO_ENABLED=0 "${GO:-go}" build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$version" \
  -o "$root/usr/local/bin/slipstream" ./cmd/slipstream
ln -s slipstream "$root/usr/local/bin/kube-proxy"
