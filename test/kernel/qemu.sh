#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one command on Debian's stock kernel, in a virtual machine of QEMU without KVM, and exits
# with the command's exit code, or with 125 when there is no result. It needs root.
#
#   qemu.sh [-kernel 6.12|6.1] [-timeout 30m] [-cpus 2] [-memory 3G] [--] command [argument...]
#
# The command sees the host's files, and may write them. /run, /dev, /proc and /sys are the
# machine's own, and TMPDIR is a tmpfs there. Output arrives as it is written; stdout and stderr
# of the command are one stream. With -v there are also the messages of the machine's kernel.
#
# With more than one CPU, QEMU sometimes executes a breakpoint that the kernel has just taken out of its code again, as it
# does to switch static keys (tc, nf_tables hooks): "Oops: int3" ends the machine. With -cpus 1 that was not seen.
#
# What is missing is installed or downloaded first: QEMU and others (Debian packages), the newest
# kernel of the series that apt's sources have, and virtme-ng (PyPI). The last two are unpacked in
#   ${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/qemu
# and used again by later runs. Nothing of them is installed on the host.
set -euo pipefail
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'test/kernel/qemu: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }

usage='usage: qemu.sh [-kernel 6.12|6.1] [-timeout 30m] [-cpus 2] [-memory 3G] [-v] [--] command [argument...]'
series=6.12 timeout=30m cpus=2 memory=3G verbose=
while [ $# -gt 0 ]; do
  case $1 in
    -kernel | -timeout | -cpus | -memory) [ $# -gt 1 ] || die "$1 has no value; $usage" ;;&
    -kernel) series=$2; shift 2 ;;
    -timeout) timeout=$2; shift 2 ;;
    -cpus) cpus=$2; shift 2 ;;
    -memory) memory=$2; shift 2 ;;
    -v) verbose=-v; shift ;;
    --) shift; break ;;
    -*) die "unknown flag $1; $usage" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || die "$usage"
[ "$(id -u)" -eq 0 ] || die "needs root"
[ "$(uname -m)" = x86_64 ] || die "the kernel is for x86_64, and this is $(uname -m)"
[ -n "${XDG_CACHE_HOME-}${HOME-}" ] || die "neither XDG_CACHE_HOME nor HOME is set: no place for the kernel"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/qemu
mkdir -p "$cache"

# --- What it needs ----------------------------------------------------------------
exec 9>"$cache/.lock"
flock 9 # another run may be downloading

apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 -o APT::Sandbox::User=root "$@" 9>&- >&2; }
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
[[ $(busybox 2>/dev/null || true) == *multi-call* ]] || missing+=(busybox-static) # for the initramfs
command -v depmod >/dev/null || missing+=(kmod)
command -v unshare >/dev/null || missing+=(util-linux)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "there is no apt-get here: please install what your system calls ${missing[*]}"
  say "installing ${missing[*]}"
  # The index may be absent (a fresh image) or stale, hence the second try.
  apt install -y --no-install-recommends "${missing[@]}" 2>/dev/null || {
    apt update || say "apt-get update failed; trying to install anyway"
    apt install -y --no-install-recommends "${missing[@]}" || die "cannot install ${missing[*]}"
  }
fi

# kernel prints the folder of the newest unpacked kernel of the series.
kernel() {
  local found
  found=$(find "$cache" -mindepth 1 -maxdepth 1 -name "linux-image-$series.*" -type d | sort -V | tail -n 1)
  [ -n "$found" ] && printf '%s\n' "$found"
}
if ! kernel >/dev/null; then
  command -v apt-get >/dev/null || die "there is no apt-get here to download a kernel of Debian"
  newest() { apt-cache search --names-only "^linux-image-${series//./\\.}\.[0-9a-z.+]*(-[0-9]+)?-amd64-unsigned$" | cut -d' ' -f1 | sort -V | tail -n 1; }
  package=$(newest)
  [ -n "$package" ] || { apt update || true; package=$(newest); }
  [ -n "$package" ] || die "apt's sources have no linux-image-$series.*-amd64-unsigned"
  work=$(mktemp -d "$cache/.unpack-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  say "downloading $package (about 100 MB)"
  (cd "$work" && { apt download "$package" || { apt update && apt download "$package"; }; }) || die "cannot download $package"
  dpkg-deb -x "$work"/*.deb "$work/root"
  [ -d "$work/root/lib" ] || ln -s usr/lib "$work/root/lib"
  depmod -b "$work/root" "$(ls "$work/root/lib/modules")"
  mv "$work/root" "$cache/$package"
  rm -rf "$work"
fi
image=$(kernel)

# A change of what is pinned makes another folder.
venv=$cache/venv-$(sha256sum "$here/qemu-requirements.txt" | cut -c1-12)
if [ ! -f "$venv/complete" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" || die "cannot make a Python environment"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$here/qemu-requirements.txt" >&2 || die "cannot install virtme-ng"
  touch "$venv/complete"
fi
flock -u 9

# --- The machine --------------------------------------------------------------------
# Output and exit code come as files: virtme-ng needs udev in the machine for its own way.
# QEMU truncates the file that is its stdout, so it gets one of its own.
run=$(mktemp -d "$cache/.run-XXXXXX")
trap 'rm -rf "$run"' EXIT
: >"$run/output" >"$run/console"
declare -px >"$run/environment"
program=$(command -v "$1") || die "no command $1"
program=$(realpath "$program")
{
  printf '. %q 2>/dev/null\ncd %q || exit\n' "$run/environment" "$PWD"
  cat <<'GUEST'
# virtme-ng keeps what is written to /tmp from the host.
umount -l /tmp
export TMPDIR=/run/tmp-of-command
mkdir -p "$TMPDIR"
mount -t tmpfs tmpfs "$TMPDIR"
ulimit -n 1048576
GUEST
  # From the host's file system the start of a large program takes many seconds.
  printf 'cp %q /run/program && mount --bind /run/program %q\n' "$program" "$program"
  printf '%q ' "$@"
  printf '>>%q 2>&1 </dev/null\necho $? >%q\nsync\n' "$run/output" "$run/code"
} >"$run/guest"

# The modules are at their place in a mount namespace only, so nothing is left to remove.
mkdir -p /lib/modules
PATH=$venv/bin:$PATH timeout -k 10 "$timeout" unshare -m --propagation private sh -ec '
  mount --bind "$1/lib/modules" /lib/modules
  udev=/lib/systemd/systemd-udevd # would look at all devices for half a minute
  [ ! -e $udev ] || mount --bind "$2" $udev
  shift 2
  exec "$@" </dev/null
' sh "$image" "$run/environment" vng $verbose -r "$image"/boot/vmlinuz-* --disable-kvm --cpus "$cpus" --memory "$memory" \
  --user root --rw --exec "bash $run/guest" >"$run/console" 2>&1 9>&- &
machine=$!
trap 'kill "$machine" 2>/dev/null || true' INT TERM HUP
tail -n +1 -f --pid="$machine" "$run/output" &
[ -z "$verbose" ] || tail -n +1 -f --pid="$machine" "$run/console" >&2 &
ended=0
wait "$machine" || ended=$?
wait # for the rest of the output
if [ ! -s "$run/code" ]; then
  [ "$ended" != 124 ] || die "not done after $timeout"
  tail -n 20 "$run/console" >&2
  die "the machine ended with code $ended before the command did"
fi
exit "$(cat "$run/code")"
