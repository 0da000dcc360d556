#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a layer of the image with iptables from the Debian packages in debian.lock: debian.sh ARCHITECTURE
# DIRECTORY, with Go's name of the processor. debian.sh source DIRECTORY writes the packages' sources.
# It needs dpkg-deb and curl. DEBIAN_MIRROR is another mirror than deb.debian.org.
set -euo pipefail
umask 022
here=$(dirname "$(realpath "$0")")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/debian
[ $# -eq 2 ] || { echo "usage: debian.sh ARCHITECTURE|source DIRECTORY" >&2; exit 2; }
case $1 in
  ppc64le) arch=ppc64el ;;
  *) arch=$1 ;;
esac
root=$2
mkdir -p "$cache" "$root"

# fetch SUM PATH prints where the file is, which has that sum.
fetch() {
  local file=$cache/$1
  if [[ ! -e $file ]]; then
    # Debian removes a package when a point release has a newer one; its archive keeps all.
    curl -fsSL --retry 3 -o "$file.$$" "$mirror/$2" ||
      curl -fsSL --retry 3 -o "$file.$$" "https://snapshot.debian.org/archive/debian/$snapshot/$2"
    mv "$file.$$" "$file"
  fi
  echo "$1  $file" | sha256sum --check --quiet --strict || { rm -f "$file"; return 1; }
  echo "$file"
}

snapshot=$(awk '$2 == "snapshot:" { print $3 }' "$here/debian.lock")
if [[ $arch == source ]]; then
  mkdir -p "$root/usr/src/debian"
  while read -r sum path; do
    file=$(fetch "$sum" "$path")
    cp "$file" "$root/usr/src/debian/${path##*/}"
  done < <(grep -v -e '^#' -e '\.deb$' "$here/debian.lock")
  exit
fi

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
# Scanners find the packages in /var/lib/dpkg/status.d, as in other images without dpkg.
mkdir -p "$root/var/lib/dpkg/status.d" "$root/run"
while read -r sum path; do
  file=$(fetch "$sum" "$path")
  dpkg-deb --fsys-tarfile "$file" | tar -x --no-same-owner -C "$unpacked"
  name=${path##*/}
  [[ $name == base-files_* ]] || dpkg-deb -f "$file" >"$root/var/lib/dpkg/status.d/${name%%_*}"
done < <(grep -e "_$arch\.deb\$" -e '/base-files_.*\.deb$' "$here/debian.lock")

cd "$unpacked"
shopt -s nullglob
# The commands of both variants; their extensions and libraries; the texts of the licences.
files=(usr/sbin/xtables-{legacy,nft}-multi usr/sbin/ip{,6}tables-{legacy,nft}{,-save,-restore}
  usr/lib/*/xtables usr/lib/*/lib{xtables,ip4tc,ip6tc,nftnl,mnl,nfnetlink,netfilter_conntrack}.so.*
  usr/lib/*/lib{c,m}.so.6 usr/lib*/ld*.so.* usr/lib/*/ld*.so.*
  usr/share/common-licenses usr/share/doc/*/copyright)
tar -c "${files[@]}" | tar -x -C "$root"
# Debian's libraries ask for the loader at its old place.
for directory in lib lib64; do
  [[ ! -d usr/$directory ]] || ln -s "usr/$directory" "$root/$directory"
done
