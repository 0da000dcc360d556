#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds slipstream at the commit that tests upgrade from, once, and prints the folder: the binary and the
# configuration files of that commit. The exit code is 3 where git does not have the commit, and with --cached, which
# builds nothing, 4 where it was not built.
set -euo pipefail
commit=9f79fd009ca9a6b3ff32984d02d34eaeea5d81e0
git() { command git -c safe.directory='*' -C "$(dirname "${BASH_SOURCE[0]}")/.." "$@"; }

git cat-file -e "$commit^{commit}" 2>/dev/null || exit 3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/previous
if [ ! -d "$cache/$commit" ]; then
  [ "${1:-}" != --cached ] || exit 4
  mkdir -p "$cache"
  temp=$(mktemp -d "$cache/build.XXXXXX")
  trap 'rm -rf "$temp"' EXIT
  mkdir "$temp/source" "$temp/out"
  git archive "$commit" | tar -x -C "$temp/source"
  PATH=$PATH:/usr/local/go/bin
  (cd "$temp/source" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$temp/out/" ./cmd/slipstream) >&2
  cp "$temp/source/deploy/release/config.conf" "$temp/out/release.conf"
  cp "$temp/source/deploy/kustomize/base/config.conf" "$temp/out/kustomize.conf"
  cp "$temp/source/internal/config/testdata/files/"{both,kubeadm}.yaml "$temp/out/"
  mv -T "$temp/out" "$cache/$commit" || [ -d "$cache/$commit" ] # another one was faster
fi
printf '%s\n' "$cache/$commit"
