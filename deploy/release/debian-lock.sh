#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints debian.lock: the Debian packages of the image with iptables, and their sources, each with its
# SHA-256 sum. Run it for a new point release or a security fix: debian-lock.sh > debian.lock
set -euo pipefail
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=trixie
packages='iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libnfnetlink0 libnetfilter-conntrack3 libc6'

index() { curl -fsSL --retry 3 "$mirror/dists/$suite/main/$1.xz" | xz -d; }

declare -A sources
echo "# SHA-256 and path below a mirror of Debian $suite. Written by debian-lock.sh."
date=$(curl -fsSL "$mirror/dists/$suite/Release" | sed -n "s/^Date: //p")
echo "# snapshot: $(date -u -d "$date" +%Y%m%dT%H%M%SZ)"
for arch in amd64 arm64 s390x ppc64el riscv64; do
  names=$packages
  # base-files has the texts of the licences, which are the same for each processor.
  [[ $arch != amd64 ]] || names+=' base-files'
  list=$(index "binary-$arch/Packages" | awk -v names=" $names " 'BEGIN { RS = ""; FS = "\n" }
    { split("", f); for (i = 1; i <= NF; i++) { p = index($i, ": "); f[substr($i, 1, p - 1)] = substr($i, p + 2) }
      if (index(names, " " f["Package"] " ")) {
        split(f["Source"] ? f["Source"] : f["Package"], s, /[ ()]+/)
        print f["SHA256"], f["Filename"], s[1], (s[2] ? s[2] : f["Version"]) } }')
  while read -r sum path source version; do
    echo "$sum  $path"
    # The texts of licences are their own source.
    [[ $source == base-files ]] || sources["$source $version"]=1
  done <<<"$list"
done
index source/Sources | awk -v wanted="$(printf '%s\n' "${!sources[@]}")" '
  BEGIN { n = split(wanted, w, "\n"); for (i = 1; i <= n; i++) want[w[i]] = 1; RS = ""; FS = "\n" }
  { name = version = dir = ""; sums = 0; files = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^Package: /) name = substr($i, 10)
      if ($i ~ /^Version: /) version = substr($i, 10)
      if ($i ~ /^Directory: /) dir = substr($i, 12)
      if ($i ~ /^[^ ]/) sums = $i ~ /^Checksums-Sha256:/
      else if (sums) { split($i, c, " "); files = files c[1] " " c[3] "\n" } }
    if (!want[name " " version]) next
    m = split(files, line, "\n"); for (i = 1; i < m; i++) { split(line[i], c, " "); print c[1] "  " dir "/" c[2] } }' | sort -u -k2
