#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a User Mode Linux kernel of the tests, once, and prints its path.
#
#   build.sh 6.12            build unless it is cached already; 6.1 likewise
#   build.sh --cached 6.12   print the path of the cached kernel, or fail; builds nothing
#
# stdout carries the path and nothing else; everything else goes to stderr. The exit code
# is 3 where the kernel cannot be built for want of Debian's packages.
#
# The kernel is Debian's linux-source-<version> with fp-size.patch, configured with
# tinyconfig and the fragments kernel.config and, if there is one,
# kernel-<version>.config. It lands in
#   ${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/testkernel/<package version>-<hash>/linux
# where the hash is of the patch and the fragments, so that a change of them builds a new
# kernel. SLIPSTREAM_TESTKERNEL names a 6.12 kernel that is ready, SLIPSTREAM_TESTKERNEL_6_1
# a 6.1 kernel; then nothing is built, if it has all options of the fragments.
set -euo pipefail
# 'su' leaves root without these, and dpkg needs them.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'test/kernel: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
unavailable() { say "$*; $variable can name a ready kernel"; exit 3; }

usage='usage: build.sh [--cached] 6.12|6.1'
cached_only=
if [ "${1-}" = --cached ]; then
  cached_only=1
  shift
fi
case "$*" in
  6.12) variable=SLIPSTREAM_TESTKERNEL ;;
  6.1) variable=SLIPSTREAM_TESTKERNEL_6_1 ;;
  *) die "arguments '$*'; $usage" ;;
esac
series=$1
package=linux-source-$series
build_packages=(bc bison flex gcc libc6-dev libelf-dev make patch xz-utils "$package")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fragments=("$here/kernel.config")
if [ -f "$here/kernel-$series.config" ]; then fragments+=("$here/kernel-$series.config"); fi

# lost prints the options of the fragments that a configuration, on stdin, does not have.
lost() {
  local config option value
  config=$(cat)
  while IFS='=' read -r option value; do
    case "$value" in
      n) ! grep -q "^$option=" <<<"$config" || printf '%s=n\n' "$option" ;;
      *) grep -qxF "$option=$value" <<<"$config" || printf '%s=%s\n' "$option" "$value" ;;
    esac
  done < <(grep -hE '^CONFIG_[A-Z0-9_]+=' "${fragments[@]}")
}

# CONFIG_IKCONFIG keeps the configuration in the kernel, compressed, after this mark.
ready=${!variable-}
if [ -n "$ready" ]; then
  [ -f "$ready" ] && [ -x "$ready" ] || die "$variable: '$ready' is not an executable file"
  at=$(grep -abom1 IKCFG_ST "$ready" | cut -d: -f1) || at=0
  options=$( (tail -c "+$((at + 9))" "$ready" | zcat 2>/dev/null || true) | lost)
  if [ -z "$options" ]; then
    printf '%s\n' "$ready"
    exit 0
  fi
  say "$variable: '$ready' is not taken, as it was built without" $options
fi

if [ -z "${XDG_CACHE_HOME-}${HOME-}" ]; then die "neither XDG_CACHE_HOME nor HOME is set: no place for the kernel"; fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/testkernel
hash=$(cat "$here/fp-size.patch" "${fragments[@]}" | sha256sum | cut -c1-12)

# newest prints the cached kernel of this version and hash with the highest package version.
newest() {
  local found
  found=$(find "$cache" -mindepth 2 -maxdepth 2 -path "$cache/$series.*-$hash/linux" -type f -perm -u+x 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] && printf '%s\n' "$found"
}

if newest; then exit 0; fi
[ -z "$cached_only" ] || die "no kernel $series of this patch and configuration is cached in $cache; 'test/kernel/build.sh $series' builds it, $variable names one that is ready"

mkdir -p "$cache"
exec 9>"$cache/.lock"
if ! flock -n 9; then
  say "another build is running; waiting for it"
  flock 9
fi
if newest; then exit 0; fi

# --- Packages -------------------------------------------------------------------
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

[ "$(uname -m)" = x86_64 ] || unavailable "this kernel is built on x86_64 only, and this is $(uname -m)"
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  unavailable "building needs Debian's package $package, and there is no apt-get here"

missing=()
for p in "${build_packages[@]}"; do installed "$p" || missing+=("$p"); done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || unavailable "not root and no sudo: please install ${missing[*]}"
    as_root=(sudo)
  fi
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@" 9>&- >&2; }
  say "installing ${missing[*]}"
  # The index may be absent (a fresh image) or stale (a package version gone from
  # the mirror), hence the second try.
  apt install -y --no-install-recommends "${missing[@]}" 2>/dev/null || {
    apt update || say "apt-get update failed; trying to install anyway"
    apt install -y --no-install-recommends "${missing[@]}" || unavailable "cannot install ${missing[*]}"
  }
fi
version=$(dpkg-query -W -f '${Version}' "$package")
tarball=/usr/src/$package.tar.xz
[ -f "$tarball" ] || die "package $package $version has no $tarball"

# --- Build ----------------------------------------------------------------------
# The build directory is in the cache, not in /tmp: unpacked it takes about 2 GB.
work=$(mktemp -d "$cache/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
say "building $package $version (4 to 10 minutes on two cores); log in $cache/build.log"
log=$cache/build.log
: >"$log"
run() { "$@" >>"$log" 2>&1 9>&- || { tail -n 40 "$log" >&2; die "failed: $*"; }; }

run tar -xJf "$tarball" -C "$work" --strip-components=1
cd "$work"
run patch -p1 -i "$here/fp-size.patch"
# ARCH=um takes the compiler's flags from the environment; a caller's must not leak in.
unset CFLAGS CPPFLAGS LDFLAGS MAKEFLAGS KCONFIG_CONFIG ARCH CROSS_COMPILE SUBARCH
run make ARCH=um tinyconfig
run scripts/kconfig/merge_config.sh -m .config "${fragments[@]}"
run make ARCH=um olddefconfig

# --- Did every option survive? ---------------------------------------------------
options=$(lost <.config)
if [ -n "$options" ]; then
  say "these options did not end up in the kernel's .config:" $options
  die "a dependency of theirs is missing, or $version does not know them"
fi

run nice make ARCH=um -j "$(nproc)" linux
run strip linux

# A rename makes it appear whole or not at all.
dest=$cache/$version-$hash
rm -rf "$dest"
mkdir "$work/out"
cp linux .config "$work/out/"
mv "$work/out/.config" "$work/out/config"
mv "$work/out" "$dest"
say "built in ${SECONDS} seconds"
printf '%s\n' "$dest/linux"
