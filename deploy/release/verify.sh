#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks a release: verify.sh DIRECTORY. It fails if a file differs from its checksum, is missing or is not
# listed, if the signature of the checksums is not by the public key COSIGN_PUBLIC_KEY (a file) or, if that is unset,
# by the release workflow's identity, or if a bill of materials lacks a module of its binary. It runs each
# binary that this machine can run, by itself or by qemu-user.
# UNSIGNED=1 leaves the signature out.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: verify.sh DIRECTORY" >&2; exit 2; }
tools=$(realpath "$(dirname "$0")/../..")/bin/tools
[[ ! ${COSIGN_PUBLIC_KEY:-} ]] || COSIGN_PUBLIC_KEY=$(realpath "$COSIGN_PUBLIC_KEY")
cd "$1"
say() { printf 'verify: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
PATH=$tools:$PATH

[[ -s SHA256SUMS ]] || fail 'there is no SHA256SUMS'
if [[ ${UNSIGNED:-} ]]; then
  say 'the signature is not checked'
elif [[ ${COSIGN_PUBLIC_KEY:-} ]]; then
  cosign verify-blob --key "$COSIGN_PUBLIC_KEY" --insecure-ignore-tlog \
    --bundle SHA256SUMS.sigstore.json SHA256SUMS >&2 || fail 'SHA256SUMS: the signature is wrong'
else
  cosign verify-blob --certificate-oidc-issuer https://token.actions.githubusercontent.com \
    --certificate-identity-regexp '^https://github\.com/slipstream-proxy/slipstream/\.github/workflows/release\.yaml@refs/tags/v' \
    --bundle SHA256SUMS.sigstore.json SHA256SUMS >&2 || fail 'SHA256SUMS: the signature is wrong'
fi
sha256sum --check --strict --quiet SHA256SUMS >&2 || fail 'a file differs from its checksum'
while read -r file; do
  case $file in
    SHA256SUMS | SHA256SUMS.sigstore.json) continue ;;
  esac
  awk -v file="$file" '$2 == file { found = 1 } END { exit !found }' SHA256SUMS || fail "$file: SHA256SUMS has no such file"
done < <(find . -mindepth 1 -printf '%P\n')

# A statement of provenance for each file that the checksums have, but itself.
for statement in *.intoto.json; do
  diff <(jq -r '.subject[] | .digest.sha256 + "  " + .name' "$statement" | sort) \
    <(awk -v self="$statement" '$2 != self { print $1 "  " $2 }' SHA256SUMS | sort) >&2 || fail "$statement: other files than SHA256SUMS"
done

binaries=0
for binary in slipstream-*-linux-*; do
  case $binary in *.json) continue ;; esac
  binaries=$((binaries + 1))
  modules=$("${GO:-go}" version -m "$binary" | awk '$1 == "dep" { print $2 "@" $3 }')
  [[ $modules ]] || fail "$binary: no modules are recorded in it"
  for bill in "$binary.spdx.json" "$binary.cdx.json"; do
    listed=$(jq -r '(.packages[]? | .externalRefs[]? | select(.referenceType == "purl") | .referenceLocator), (.components[]? | .purl // empty)' "$bill" |
      sed -n 's|^pkg:golang/||; s|?.*||; s|#.*||; s|%2[Bb]|+|g; p')
    while read -r module; do
      # Package URLs have lower-case names.
      grep -qixF -- "$module" <<<"$listed" || fail "$bill: $module is missing"
    done <<<"$modules"
  done
  arch=${binary##*-}
  run=()
  if [[ $arch != "$("${GO:-go}" env GOHOSTARCH)" ]]; then
    case $arch in
      amd64) qemu=x86_64 ;;
      arm64) qemu=aarch64 ;;
      *) qemu=$arch ;;
    esac
    run=("$(type -P "qemu-$qemu-static" || type -P "qemu-$qemu" || true)")
    [[ ${run[0]} ]] || { say "$binary: not run, as there is no qemu-$qemu-static"; continue; }
  fi
  chmod +x "$binary"
  [[ $("${run[@]}" "./$binary" version) == "slipstream v"*"linux/$arch" ]] || fail "$binary: it does not say its version"
done
((binaries > 0)) || fail 'there is no binary'
say "$1 is right: $binaries binaries, $(wc -l <SHA256SUMS) files"
