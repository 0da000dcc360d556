#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs containerd and a kubelet until one of them ends. It is the first process of a PID, a mount and a
# network namespace, so everything that it has started and mounted ends with it.
#
#   node.sh DIR IMAGES PAUSE KUBELET [FLAG...]    DIR has cni.conflist, IMAGES is an archive, PAUSE an image in it
set -euo pipefail

dir=$1 images=$2 pause=$3
shift 3
mount --make-rprivate /
mount --make-rshared / # for mounts that containers pass on
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/lock "$dir"/{containerd,kubelet,log,cni,cni-state}
bind() { mkdir -p "$2" && mount --bind "$1" "$2"; }
bind "$dir/kubelet" /var/lib/kubelet
bind "$dir/log" /var/log
bind "$dir/cni" /etc/cni/net.d
bind "$dir/cni-state" /var/lib/cni
cp "$dir/cni.conflist" /etc/cni/net.d/

# The kubelet sets these of the machine unless they are what it wants.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  echo "${setting#*=}" >"/run/${setting//\//-}"
  mount --bind "/run/${setting//\//-}" "/proc/sys/${setting%=*}"
done

cat >/run/containerd.toml <<END
version = 2
root = "$dir/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause"
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
END
containerd --config /run/containerd.toml >"$dir/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do
  kill -0 $! || { tail -5 "$dir/containerd.log" >&2; exit 1; }
  sleep 0.1
done
ctr -n k8s.io images import "$images" >/dev/null
"$@" &
wait -n
