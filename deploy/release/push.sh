#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Pushes the images and the chart of a release to a registry, and signs them there with the identity of the
# workflow, or with the key COSIGN_PRIVATE_KEY if it is set: push.sh DIRECTORY REGISTRY. ACTOR and GH_TOKEN are the user
# and the password; without GH_TOKEN it does not log in.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: push.sh DIRECTORY REGISTRY" >&2; exit 2; }
PATH=$(realpath "$(dirname "$0")/../..")/bin/tools:$PATH
directory=$1 registry=$2
sign=(cosign sign --yes --recursive)
[[ ! ${COSIGN_PRIVATE_KEY:-} ]] || sign+=(--key env://COSIGN_PRIVATE_KEY --use-signing-config=false --tlog-upload=false)
[[ ! ${GH_TOKEN:-} ]] || {
  crane auth login "${registry%%/*}" -u "$ACTOR" --password-stdin <<<"$GH_TOKEN"
  cosign login "${registry%%/*}" -u "$ACTOR" --password-stdin <<<"$GH_TOKEN"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# push FILE TAG... pushes an OCI image layout, signs it, and gives it the tags.
push() {
  local file=$1 reference tag
  shift
  mkdir -p "$work/layout"
  tar -x -C "$work/layout" -f "$file"
  for tag; do
    reference=$(crane push "$work/layout" "$registry$tag")
  done
  rm -r "$work/layout"
  "${sign[@]}" "$reference"
  echo "$reference"
}
for file in "$directory"/slipstream-v*-image.tar; do
  version=${file##*/slipstream-}
  version=${version%-image.tar}
  push "$file" ":$version"
  push "$directory/slipstream-$version-image-iptables.tar" ":$version-iptables"
  push "$directory/slipstream-chart-${version#v}.oci.tar" "/charts/slipstream:${version#v}"
done
