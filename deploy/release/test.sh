#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests release.sh, verify.sh and push.sh (root): the release of the commit is built in two folders, the second time by
# another user with another umask and an empty build cache, and is the same; verify.sh takes it, and refuses
# it when anything is changed; push.sh pushes it to a registry on this machine, and the chart is there. It takes about as
# long as building the product ten times.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
[[ $(id -u) == 0 ]] || { echo 'test.sh: the second build is another user'"'"'s, so this needs root' >&2; exit 1; }
say() { printf 'test-release: %s\n' "$*" >&2; }
fail() { say "FAILED: $*"; exit 1; }
go=$(type -P "${GO:-go}")
temp=$(mktemp -d)
printf '[safe]\n\tdirectory = *\n' >"$temp/gitconfig"
export GIT_CONFIG_GLOBAL=$temp/gitconfig
chmod 755 "$temp"
registry=
trap '[[ -z $registry ]] || kill "$registry"; rm -rf "$temp"' EXIT
tools=$temp/tools
mkdir "$temp/one" "$temp/other" "$temp/modules" "$temp/keys"

say 'the first build'
git clone -q . "$temp/one/slipstream"
(cd "$temp/one/slipstream" && GO=$go deploy/release/release.sh)
cp -r "${TOOLS:-$temp/one/slipstream/bin/tools}" "$tools"
export PATH=$tools:$PATH

say 'the second build'
mkdir -p "$temp/other/a folder"
git clone -q . "$temp/other/a folder/checkout"
chown -R nobody: "$temp/other"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/debian
mkdir -p "$temp/other/cache/slipstream"
cp -r "$cache" "$temp/other/cache/slipstream/"
chown -R nobody: "$temp/other/cache"
# shellcheck disable=SC2016
# The other user has the downloaded modules, which are in a folder of root's.
modules=$("$go" env GOMODCACHE) unshare -m bash -euc '
  umask 077
  mount --bind "$modules" "$1/modules"
  cd "$1/other/a folder/checkout"
  exec setpriv --reuid=nobody --regid=nogroup --clear-groups env -u GOFLAGS HOME="$1/other" XDG_CACHE_HOME="$1/other/cache" \
    GOMODCACHE="$1/modules" GOCACHE="$1/other/build" TOOLS="$1/tools" GO="$2" deploy/release/release.sh' - "$temp" "$go"

one=$temp/one/slipstream/dist other="$temp/other/a folder/checkout/dist"
diff "$one/SHA256SUMS" "$other/SHA256SUMS" >&2 || fail 'the two differ'
say "$(wc -l <"$one/SHA256SUMS") files are the same in both"

say 'verify.sh'
(cd "$temp/keys" && COSIGN_PASSWORD='' cosign generate-key-pair 2>/dev/null && mkdir other && cd other && COSIGN_PASSWORD='' cosign generate-key-pair 2>/dev/null)
COSIGN_PASSWORD='' cosign sign-blob --yes --key "$temp/keys/cosign.key" --use-signing-config=false --tlog-upload=false \
  --bundle "$one/SHA256SUMS.sigstore.json" "$one/SHA256SUMS" >/dev/null 2>&1
export COSIGN_PUBLIC_KEY=$temp/keys/cosign.pub
verify() { GO=$go deploy/release/verify.sh "$1" >"$temp/log" 2>&1; }
verify "$one" || { cat "$temp/log" >&2; fail 'a release that is right is refused'; }
cat "$temp/log" >&2

# refused WHAT WHY says that verify.sh has to refuse $temp/bad, with that message.
refused() {
  ! verify "$temp/bad" || fail "$1: verify.sh takes it"
  grep -qF -- "$2" "$temp/log" || { cat "$temp/log" >&2; fail "$1: refused for another reason than '$2'"; }
  say "refused: $1"
}
fresh() { rm -rf "$temp/bad"; cp -r "$one" "$temp/bad"; }
# flip FILE changes one bit in the middle.
flip() {
  local at byte
  at=$(($(stat -c %s "$1") / 2))
  byte=$(od -An -tu1 -j "$at" -N 1 "$1")
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}

fresh
while read -r _ file; do flip "$temp/bad/$file"; done <"$one/SHA256SUMS"
refused 'every file with one byte changed' 'a file differs from its checksum'
while read -r _ file; do
  grep -qF -- "$file: FAILED" "$temp/log" || fail "one byte of $file was changed, and nobody noticed"
done <"$one/SHA256SUMS"
for file in SHA256SUMS SHA256SUMS.sigstore.json; do
  fresh
  flip "$temp/bad/$file"
  refused "one byte of $file changed" 'the signature is wrong'
done
fresh
COSIGN_PUBLIC_KEY=$temp/keys/other/cosign.pub refused 'the key of others' 'the signature is wrong'
touch "$temp/bad/more"
refused 'one file more' 'SHA256SUMS has no such file'

# What the checksums do not see: whoever signs them has left something out of a bill.
fresh
bill=$(cd "$temp/bad" && ls slipstream-*-linux-amd64.cdx.json)
jq 'del(.components[] | select(.name == "k8s.io/api"))' "$one/$bill" >"$temp/bad/$bill"
statement=$(cd "$temp/bad" && ls ./*.intoto.json)
sum=$(sha256sum <"$temp/bad/$bill" | cut -d' ' -f1)
jq --arg n "$bill" --arg s "$sum" '(.subject[] | select(.name == $n) | .digest.sha256) = $s' "$one/$statement" >"$temp/bad/$statement"
(cd "$temp/bad" && rm SHA256SUMS* && sha256sum -- * >"$temp/sums" && mv "$temp/sums" SHA256SUMS)
export UNSIGNED=1
refused 'a bill without a module' 'k8s.io/api@'

say 'push.sh'
crane registry serve --address 127.0.0.1:0 2>"$temp/registry" &
registry=$!
until port=$(grep -o 'serving on port [0-9]*' "$temp/registry"); do
  kill -0 "$registry" 2>/dev/null || fail "the registry ended: $(<"$temp/registry")"
  sleep 0.2
done
local=127.0.0.1:${port##* }/slipstream
COSIGN_PASSWORD='' COSIGN_PRIVATE_KEY=$(<"$temp/keys/cosign.key") deploy/release/push.sh "$one" "$local" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; fail 'push.sh'; }
chart=$(cd "$one" && ls slipstream-chart-*.tgz)
number=${chart#slipstream-chart-}
number=${number%.tgz}
for image in "$local:v$number" "$local:v$number-iptables" "$local/charts/slipstream:$number"; do
  cosign verify --key "$COSIGN_PUBLIC_KEY" --insecure-ignore-tlog "$image" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; fail "$image: the signature is wrong"; }
done
helm pull "oci://$local/charts/slipstream" --version "$number" --plain-http -d "$temp" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; fail 'the chart cannot be pulled'; }
cmp "$temp/slipstream-$number.tgz" "$one/$chart" || fail 'the chart in the registry is another one'
say PASSED
