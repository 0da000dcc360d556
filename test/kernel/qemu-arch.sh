#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a program of another processor on Debian's stock kernel for it, in QEMU without KVM, and exits with the program's
# exit code, or with 125 when there is no result. It needs root, to install QEMU.
#
#   qemu-arch.sh [-arch arm64|s390x] [-kernel 6.12|6.1] [-timeout 60m] [-memory 3G] program folder [argument...]
#
# Debian 12 has 6.12 for arm64 only.
#
# The machine has a file system of its own, in memory, with the program, the folder of the repository in which it runs,
# docs, the commands that tests need and the kernel's modules. The program is linked statically, as Go's are without cgo. The machine has one
# processor, which is some twenty times slower than this machine's.
set -euo pipefail
say() { printf 'test/kernel/qemu-arch: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }
arch=arm64 series='' timeout=60m memory=3G
while [[ ${1-} == -* ]]; do
  case $1 in
    -arch) arch=$2 ;;
    -kernel) series=$2 ;;
    -timeout) timeout=$2 ;;
    -memory) memory=$2 ;;
    *) die "unknown flag $1" ;;
  esac
  shift 2
done
[ $# -ge 2 ] || die 'usage: qemu-arch.sh [-arch arm64|s390x] [-kernel 6.12|6.1] [-timeout 60m] [-memory 3G] program folder [argument...]'
program=$1 folder=$2
shift 2
case $arch in
  arm64)
    : "${series:=6.12}"
    suffix=-unsigned package=qemu-system-arm
    # shellcheck disable=SC2054 # the comma is QEMU's
    qemu=(qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -device virtio-serial-pci -device virtconsole,chardev=out) console=hvc0
    ;;
  s390x)
    : "${series:=6.1}"
    suffix='' package=qemu-system-misc
    qemu=(qemu-system-s390x -machine s390-ccw-virtio -cpu max -serial chardev:out) console=ttysclp0
    ;;
  *) die "unknown processor $arch" ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/qemu-arch-$arch
mkdir -p "$cache"
missing=()
command -v "${qemu[0]}" >/dev/null || missing+=("$package" ipxe-qemu)
command -v depmod >/dev/null || missing+=(kmod)
command -v cpio >/dev/null || missing+=(cpio)
[ ${#missing[@]} = 0 ] || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >&2 || die "cannot install ${missing[*]}"

image=$(find "$cache" -mindepth 1 -maxdepth 1 -name "linux-image-$series.*" -type d | sort -V | tail -n 1)
if [ -z "$image" ]; then
  # Lists of another processor's packages, which this machine's apt does not get to see.
  work=$(mktemp -d "$cache/.apt-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/{state/lists/partial,cache/archives/partial,root}
  cd "$work"
  options=(-qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$work/state" -o Dir::State::status=/dev/null
    -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update >&2 || die "cannot get Debian's lists of packages for $arch"
  package=$(apt-cache "${options[@]}" search --names-only "^linux-image-${series//./\\.}\.[0-9a-z.+]*(-[0-9]+)?-$arch$suffix$" | cut -d' ' -f1 | sort -V | tail -n 1)
  [ -n "$package" ] || die "Debian has no kernel $series for $arch"
  say "downloading $package (30 to 95 MB) and commands (20 MB)"
  { apt-get "${options[@]}" download "$package" &&
    apt-get "${options[@]}" --no-install-recommends --download-only install busybox-static conntrack dash iproute2 iptables nftables procps; } >&2 ||
    die "cannot download $package"
  dpkg-deb -x linux-image-*.deb root
  mkdir root/commands
  for file in cache/archives/*.deb; do dpkg-deb -x "$file" root/commands; done
  rm -rf root/commands/usr/share root/commands/lib/systemd
  [ -d root/lib ] || ln -s usr/lib root/lib
  # What tests need. The machine would decompress modules slowly.
  release=$(ls root/lib/modules)
  (cd "root/lib/modules/$release" && mkdir some && cp modules.{builtin*,order} some/ &&
    find kernel/{net,crypto,lib,drivers/net} -name '*.ko*' ! -path '*/wireless/*' ! -path '*/ethernet/*' ! -path '*/bluetooth/*' ! -path '*/usb/*' \
      -exec cp --parents {} some/ \; && find some -name '*.xz' -exec xz -d {} +)
  mkdir -p "root/some/lib/modules"
  mv "root/lib/modules/$release/some" "root/some/lib/modules/$release"
  depmod -b root/some "$release"
  mv root "$cache/$package"
  image=$cache/$package
  cd - >/dev/null
fi

run=$(mktemp -d "$cache/.run-XXXXXX")
trap 'rm -rf "$run"' EXIT
mkdir -p "$run/root"/{bin,sbin,busybox,proc,sys,dev,tmp,run,etc,var/run,repository/docs} "$run/root/repository/$folder"
cp -r "$image/commands/." "$image/some/lib" "$run/root/"
cp "$program" "$run/root/program"
cp -rL "$folder/." "$run/root/repository/$folder/"
cp docs/*.md "$run/root/repository/docs/"
{
  cat <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /busybox
ln -s /busybox/modprobe /sbin/modprobe
ln -sf dash /bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/ TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run; mount -t bpf bpf /sys/fs/bpf; mount -t cgroup2 cgroup2 /sys/fs/cgroup
dmesg -n 1
ip link set lo up
ulimit -n 1048576
GUEST
  printf 'cd /repository/%q\n/program' "$folder"
  printf ' %q' "$@"
  printf ' 2>&1\necho "exit code of the program: $?"\npoweroff -f\n'
} >"$run/root/init"
chmod +x "$run/root/init"
(cd "$run/root" && find . | cpio -o -H newc --quiet) >"$run/initrd"
rm -rf "$run/root"
timeout -k 10 "$timeout" "${qemu[@]}" -smp 1 -m "$memory" -display none -no-reboot -nic none \
  -chardev stdio,id=out \
  -kernel "$image"/boot/vmlinuz-* -initrd "$run/initrd" -append "console=$console quiet panic=-1" </dev/null | sed -u 's|\r$||' | tee "$run/output"
code=$(sed -n 's/^exit code of the program: //p' "$run/output" | tail -n 1)
[ -n "$code" ] || die "no result within $timeout, or the machine ended"
exit "$code"
