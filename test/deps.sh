#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the commands that the tests use, those that are missing. On a machine with
# apt-get it installs Debian's packages; elsewhere it names what is missing and fails.
# It does nothing, and needs no rights, where everything is there.
#
#   deps.sh           install what is missing
#   deps.sh e2e       the same, with what make e2e needs
#   deps.sh --check   only say what is missing, and fail if something is
set -euo pipefail

say() { printf 'test/deps: %s\n' "$*" >&2; }

check= e2e=
case "$*" in
  '') ;;
  e2e) e2e=1 ;;
  --check) check=1 ;;
  *) say "unknown arguments '$*'; usage: deps.sh [e2e|--check]"; exit 2 ;;
esac

# Many of these live in directories that only root's PATH has.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# command and Debian package: what wants it.
needs=(
  'nft nftables'                # a second opinion on what the kernel's tables hold
  'iptables-legacy iptables'    # living next to, and cleaning up after, iptables
  'ip6tables-legacy iptables'
  'iptables-nft iptables'
  'ip6tables-nft iptables'
  'ipset ipset'                 # cleaning up after kube-proxy's IPVS mode
  'ipvsadm ipvsadm'
  'conntrack conntrack'         # looking at, and deleting, tracked connections
  'ip iproute2'                 # the lab's namespaces, links and routes, by hand
  'tc iproute2'
  'ss iproute2'
  'ping iputils-ping'
  'tcpdump tcpdump'             # looking at a test that fails
  'iperf3 iperf3'               # benchmarks
  'gcc build-essential'         # the race detector needs cgo
  'clang clang'                 # compiling the BPF program, to compare it with what is committed
  'llvm-strip llvm'
  'chromium chromium'           # tests of pages: the proxy's, and the report's
  'ps procps'
  'sysctl procps'
  'spin spin'                   # exploring the model of test/model
  'promtool prometheus'         # evaluating the alerts
  'curl curl'                   # FTP and SIP through ranges of ports
  'vsftpd vsftpd'
  'sipp sip-tester'
)
[ -z "$e2e" ] || needs+=(
  'containerd containerd'       # nodes with a kubelet
  'runc runc'
  '/usr/lib/cni/portmap containernetworking-plugins'
  'debootstrap debootstrap'     # images for their pods
  'busybox busybox-static'       # the list of its programs
  'nsenter util-linux'
)

missing=()
packages=()
for need in "${needs[@]}"; do
  read -r command package <<<"$need"
  command -v "$command" >/dev/null && continue
  missing+=("$command")
  case " ${packages[*]-} " in *" $package "*) ;; *) packages+=("$package") ;; esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ -n "$check" ]; then
  say "missing: ${missing[*]}; Debian's packages for them: ${packages[*]}"
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  say "missing: ${missing[*]}; there is no apt-get here, please install what your system calls ${packages[*]}"
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "not root and no sudo: please run, as root: apt-get install ${packages[*]}"
    exit 1
  fi
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@" >&2; }

# The packages prometheus, vsftpd and containerd would start servers on this machine, so programs are unpacked from them.
unpack() (
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$1" && dpkg -x "$1"_*.deb . || exit
  shift
  "${as_root[@]}" cp "${@/#/usr/}" /usr/local/bin
)

install() {
  local names=() name
  for name in "${packages[@]}"; do
    case $name in
      vsftpd) unpack vsftpd sbin/vsftpd || return; names+=(libwrap0) ;;
      prometheus) unpack prometheus bin/promtool || return ;;
      containerd) unpack containerd bin/containerd bin/containerd-shim-runc-v2 bin/ctr || return ;;
      *) names+=("$name") ;;
    esac
  done
  [ ${#names[@]} -eq 0 ] || apt install -y --no-install-recommends "${names[@]}"
}

say "installing ${packages[*]}"
# The package index may be absent (a fresh image) or stale, hence the second try.
install 2>/dev/null || {
  apt update || say "apt-get update failed; trying to install anyway"
  install || { say "cannot install ${packages[*]}"; exit 1; }
}
left=()
for command in "${missing[@]}"; do command -v "$command" >/dev/null || left+=("$command"); done
if [ ${#left[@]} -gt 0 ]; then
  say "still missing after the installation: ${left[*]}"
  exit 1
fi
