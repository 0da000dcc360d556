#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds everything that a release consists of: release.sh [DIRECTORY], dist by default. Two runs of one
# commit write the same bytes, except for the signatures. docs/release.md says what the files are.
#
# With COSIGN_PRIVATE_KEY (and COSIGN_PASSWORD) the checksums are signed. With KEYLESS=1 they are signed with
# the identity of the workflow that runs this. Otherwise they are not signed.
# WITHOUT_SOURCES=1, for tests where the mirror has no source packages, leaves Debian's sources out of the image.
# ARCHITECTURES="amd64 s390x" builds for these processors only. TOOLS is a directory with the tools, built before.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
out=$(realpath -m "${1:-dist}")
tools=${TOOLS:-$PWD/bin/tools}
architectures=${ARCHITECTURES:-amd64 arm64 s390x ppc64le riscv64}
repository=ghcr.io/slipstream-proxy/slipstream # where push.sh takes the images, in the workflow

say() { printf 'release: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

work=$(mktemp -d)
registry=
trap '[[ -z $registry ]] || kill "$registry"; rm -rf "$work"' EXIT
# The checkout may be another user's.
printf '[safe]\n\tdirectory = *\n' >"$work/gitconfig"
export GIT_CONFIG_GLOBAL=$work/gitconfig
[[ -z $(git status --porcelain) ]] || fail 'the tree has changes that are not committed'
# A clone has what is committed and nothing else. Go records no commit in a worktree of git.
git clone --quiet . "$work/source-tree"
cd "$work/source-tree"
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
version=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null) ||
  version=v0.0.0-$(git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S)-${commit:0:12}
number=${version#v}
created=$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

# The toolchain that go.mod names, and none of the user's settings that change code.
GOTOOLCHAIN=$(awk '$1 == "toolchain" { print $2 }' go.mod)
export GOTOOLCHAIN CGO_ENABLED=0 GOFLAGS='' GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0 GOPPC64=power8 GORISCV64=rva20u64
go=${GO:-go}

rm -rf "$out"
mkdir -p "$out"

pack() { tar --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$@"; }

say "binaries of $version"
for arch in $architectures; do
  GOOS=linux GOARCH=$arch "$go" build -buildvcs=true -trimpath -ldflags "-s -w -X main.version=$version" \
    -o "$out/slipstream-$version-linux-$arch" ./cmd/slipstream
done
# Each module builds alone, as the dependencies clash.
if [[ ! ${TOOLS:-} ]]; then
  say 'the tools'
  for module in release sign; do
    (cd "tools/$module" && "$go" build -buildvcs=false -trimpath -o "$tools/" tool)
  done
fi
PATH=$tools:$PATH

say 'licences'
# go-licenses asks the Go that it was built with where the standard library is.
GOROOT=$("$go" env GOROOT) GOFLAGS=-buildvcs=false go-licenses save ./cmd/slipstream --save_path "$work/licences/third-party" \
  --ignore github.com/slipstream-proxy/slipstream 2>"$work/go-licenses" || { cat "$work/go-licenses" >&2; exit 1; }
cp "$("$go" env GOROOT)/LICENSE" "$work/licences/third-party/LICENSE.go"
cp internal/observe/page/assets/uPlot.LICENSE.txt "$work/licences/third-party/LICENSE.uPlot"
cp LICENSE NOTICE "$work/licences/"
# The texts are as their modules have them, but may be read-only.
chmod -R u=rwX,go=rX "$work/licences"
pack -C "$work/licences" -cf - . | gzip -9n >"$out/slipstream-$version-licences.tar.gz"

say 'man pages and completions'
mkdir -p "$work/man" "$work/completions"
"$go" test -count=1 -run '^TestManPages$' ./cmd/slipstream -man "$work/man" >&2
for shell in bash zsh fish powershell; do
  "$out/slipstream-$version-linux-$("$go" env GOHOSTARCH)" completion "$shell" >"$work/completions/slipstream.$shell"
done
pack -C "$work" -cf - man completions | gzip -9n >"$out/slipstream-$version-man-completions.tar.gz"

say 'packages'
for arch in $architectures; do
  for format in deb rpm; do
    # nfpm knows Go's names of processors.
    VERSION=$number ARCH=$arch BINARY=$out/slipstream-$version-linux-$arch WORK=$work \
      nfpm package --config deploy/release/nfpm.yaml --packager "$format" --target "$out/slipstream_${number}_$arch.$format" >&2
  done
done

say 'chart and manifests'
cp -r deploy/helm/slipstream "$work/slipstream-chart"
mkdir "$work/chart"
mv "$work/slipstream-chart" "$work/chart/slipstream"
sed -i "s/^version: .*/version: $number/; \$a appVersion: $version" "$work/chart/slipstream/Chart.yaml"
sed -i "s|^  repository: slipstream$|  repository: $repository|; s/^  tag: latest$/  tag: $version/" "$work/chart/slipstream/values.yaml"
# Built as a Go module, helm takes the cluster for an old one.
helm lint --strict --kube-version 1.37.0 --set apiServer=https://192.0.2.1:6443 "$work/chart/slipstream" >&2
# helm package writes the time of day into the archive.
chart=$out/slipstream-chart-$number.tgz
pack -C "$work/chart" -cf - --exclude=.helmignore slipstream/{Chart.yaml,values.yaml,values.schema.json,templates} | gzip -9n >"$chart"
touch -d "@$SOURCE_DATE_EPOCH" "$chart"
helm template slipstream "$chart" --kube-version 1.37.0 --namespace kube-system --set apiServer=https://API-SERVER:6443 >"$out/slipstream-$version.yaml"
cp -r deploy/kustomize "$work/kustomize"
sed -i "s|newName: slipstream$|newName: $repository|; s/newTag: latest$/newTag: $version/" "$work/kustomize/base/kustomization.yaml"
[[ $(grep -c "$repository:$version" "$out/slipstream-$version.yaml") -gt 0 && $(grep -c "$repository" "$work/kustomize/base/kustomization.yaml") == 1 ]] ||
  fail 'the manifests do not name the image of the release'
pack -C "$work" -cf - kustomize | gzip -9n >"$out/slipstream-$version-kustomize.tar.gz"

say 'images'
crane registry serve --address 127.0.0.1:0 2>"$work/registry" &
registry=$!
until port=$(grep -o 'serving on port [0-9]*' "$work/registry"); do
  kill -0 "$registry" 2>/dev/null || fail "the registry ended: $(<"$work/registry")"
  sleep 0.2
done
local=127.0.0.1:${port##* }

# image NAME LAYER... makes slipstream-VERSION-NAME.tar, an OCI image layout for each processor. A layer is a
# directory below $work, with the processor's name as suffix if there is one.
image() {
  local name=$1 arch layer files manifests=()
  shift
  for arch in $architectures; do
    files=()
    for layer; do
      [[ -e $work/$layer-$arch ]] && layer+=-$arch
      [[ -e $work/$layer.tar ]] || pack -C "$work/$layer" -cf "$work/$layer.tar" .
      files+=(-f "$work/$layer.tar")
    done
    crane append --oci-empty-base "${files[@]}" -t "$local/$name:$arch" >/dev/null
    crane mutate "$local/$name:$arch" -t "$local/$name:$arch" --set-platform "linux/$arch" \
      --entrypoint /usr/local/bin/slipstream --cmd run --env PATH=/usr/local/bin:/usr/sbin \
      --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$commit" \
      --label "org.opencontainers.image.licenses=$licences" >/dev/null
    manifests+=(-m "$local/$name:$arch")
  done
  crane index append "${manifests[@]}" -t "$local/$name:$version" >/dev/null
  layout "$name:$version" "$out/slipstream-$version-$name.tar"
}

# layout REFERENCE FILE writes what the registry has as an OCI image layout.
layout() {
  rm -rf "$work/layout"
  crane pull --format=oci "$local/$1" "$work/layout"
  pack -C "$work/layout" -cf "$2" .
}

for arch in $architectures; do
  root=$work/binary-$arch
  mkdir -p "$root/usr/local/bin" "$root/usr/share/doc/slipstream"
  cp "$out/slipstream-$version-linux-$arch" "$root/usr/local/bin/slipstream"
  ln -s slipstream "$root/usr/local/bin/kube-proxy"
  cp -r "$work/licences/." "$root/usr/share/doc/slipstream/"
  deploy/release/debian.sh "$arch" "$work/debian-$arch"
done
sources=(source)
if [[ ${WITHOUT_SOURCES:-} ]]; then
  say 'the image with iptables lacks the sources: do not give it to others'
  sources=()
else
  deploy/release/debian.sh source "$work/source"
fi
licences=Apache-2.0
image image binary
licences='Apache-2.0 AND GPL-2.0-or-later AND LGPL-2.1-or-later'
# The layers of Debian's files first: they are the same from release to release.
image image-iptables "${sources[@]}" debian binary
helm push --plain-http "$chart" "oci://$local/chart" >&2
layout "chart/slipstream:$number" "$out/slipstream-chart-$number.oci.tar"

say 'software bills of materials'
# spdx FILE turns a CycloneDX bill into SPDX 2.3. (syft writes both, but needs 1,500 packages more to be built.)
spdx() {
  jq --arg t "$created" --arg n "${1##*/}" '
    def id: "SPDXRef-" + (.["bom-ref"] | gsub("[^A-Za-z0-9.-]"; "-"));
    def package: {SPDXID: id, name, versionInfo: (.version // "NOASSERTION"), downloadLocation: "NOASSERTION", filesAnalyzed: false,
      licenseConcluded: "NOASSERTION", licenseDeclared: "NOASSERTION", copyrightText: "NOASSERTION",
      checksums: [.hashes[]? | {algorithm: (.alg | gsub("-"; "")), checksumValue: .content}],
      externalRefs: [.purl // empty | {referenceCategory: "PACKAGE-MANAGER", referenceType: "purl", referenceLocator: .}]};
    .metadata.component as $main | {
      spdxVersion: "SPDX-2.3", dataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", name: $n,
      documentNamespace: ("https://github.com/slipstream-proxy/slipstream/releases/" + $n),
      creationInfo: {created: $t, creators: ["Tool: deploy/release/release.sh"]},
      packages: [$main, .components[] | package],
      relationships: ([{spdxElementId: "SPDXRef-DOCUMENT", relationshipType: "DESCRIBES", relatedSpdxElement: ($main | id)}]
        + [.components[] | {spdxElementId: ($main | id), relationshipType: "DEPENDS_ON", relatedSpdxElement: id}])}' \
    "$1" >"${1%.cdx.json}.spdx.json"
}
for arch in $architectures; do
  name=slipstream-$version-linux-$arch
  cyclonedx-gomod bin -json -std -noserial -notimestamp -version "$version" "$out/$name" 2>"$work/gomod" |
    jq --arg t "$created" '.metadata.timestamp = $t' >"$out/$name.cdx.json" || { cat "$work/gomod" >&2; exit 1; }
  spdx "$out/$name.cdx.json"
done
bill=$out/slipstream-$version-image-iptables.cdx.json
grep '\.deb$' deploy/release/debian.lock | jq -Rn --arg t "$created" --arg v "$version" '{
  bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
  metadata: {timestamp: $t, component: {"bom-ref": "slipstream-image-iptables", type: "container", name: "slipstream-image-iptables", version: $v}},
  components: [inputs | capture("^(?<sum>[0-9a-f]+)  .*/(?<name>[^_/]+)_(?<version>[^_]+)_(?<arch>[^_]+)[.]deb$")
    | ("pkg:deb/debian/" + .name + "@" + (.version | gsub("[+]"; "%2B")) + "?arch=" + .arch + "&distro=trixie") as $purl
    | {"bom-ref": $purl, type: "library", name, version, purl: $purl, hashes: [{alg: "SHA-256", content: .sum}]}]}' >"$bill"
spdx "$bill"

say 'provenance'
(cd "$out" && sha256sum -- *) | jq -Rn --arg commit "$commit" --arg version "$version" --arg go "$GOTOOLCHAIN" \
  --arg lock "$(sha256sum <deploy/release/debian.lock | cut -d' ' -f1)" '
  "https://github.com/slipstream-proxy/slipstream" as $home | {
    _type: "https://in-toto.io/Statement/v1",
    subject: [inputs | capture("^(?<sum>[0-9a-f]+)  (?<name>.*)$") | {name, digest: {sha256: .sum}}],
    predicateType: "https://slsa.dev/provenance/v1",
    predicate: {
      buildDefinition: {
        buildType: ($home + "/blob/" + $commit + "/docs/release.md"),
        externalParameters: {source: ("git+" + $home), version: $version},
        resolvedDependencies: [
          {uri: ("git+" + $home + "@" + $version), digest: {gitCommit: $commit}},
          {uri: ("https://go.dev/dl/" + $go), name: "toolchain"},
          {uri: ("git+" + $home + "@" + $version + "#deploy/release/debian.lock"), digest: {sha256: $lock}}]},
      runDetails: {builder: {id: ($home + "/blob/" + $commit + "/deploy/release/release.sh")}}}}' >"$out/slipstream-$version.intoto.json"
(cd "$out" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)

if [[ ${KEYLESS:-} ]]; then
  cosign sign-blob --yes --bundle "$out/SHA256SUMS.sigstore.json" "$out/SHA256SUMS" >/dev/null
elif [[ ${COSIGN_PRIVATE_KEY:-} ]]; then
  cosign sign-blob --yes --key env://COSIGN_PRIVATE_KEY --use-signing-config=false --tlog-upload=false \
    --bundle "$out/SHA256SUMS.sigstore.json" "$out/SHA256SUMS" >/dev/null
else
  say 'not signed: neither COSIGN_PRIVATE_KEY nor KEYLESS is set'
fi
chmod -f 644 "$out/SHA256SUMS.sigstore.json" || true
say "$version is in $out"
