#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the images that nodes have, as there is no registry: one file system of Debian packages and of programs
# that were built from source, under all names that upstream's specs use.
#
#   images.sh FILE PROGRAM... < names    FILE is what "ctr images import" reads; a name is REGISTRY/IMAGE:TAG
#
# Names that need something else are left out.
set -euo pipefail

file=$1
shift
work=$(mktemp -d "$file.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"

packages=bash,bind9-dnsutils,busybox-static,conntrack,curl,iperf,iproute2,iptables,iputils-ping,netcat-openbsd,procps,socat,util-linux,wget # busybox-static's wget crashes
# The archive that apt-get uses on this machine.
read -r site suite < <(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | head -1)
debian=${file%/*}/debian-$(echo "$suite $packages" | sha256sum | cut -c1-12).tar
if [ ! -e "$debian" ]; then
  debootstrap --variant=minbase --include="$packages" "$suite" "$work/debian" "$site" >&2
  rm -rf "$work"/debian/{var/cache/apt,var/lib/apt/lists,usr/share/doc,usr/share/man,usr/share/locale}
  tar -C "$work/debian" --numeric-owner -cf "$work/debian.tar" .
  mv "$work/debian.tar" "$debian"
fi
ln "$debian" "$work/debian.tar"

mkdir -p "$root/uploads" "$root/opt/busybox" # agnhost writes into the first
cp "$@" "$root"
ln -s agnhost "$root/agnhost-2"
# What Debian's packages lack, at the end of PATH.
for applet in $(busybox --list); do ln -s /bin/busybox "$root/opt/busybox/$applet"; done
tar -C "$root" --owner=0 --group=0 -cf "$work/programs.tar" .

layers=
for layer in debian programs; do
  layers+=${layers:+, }"\"sha256:$(sha256sum "$work/$layer.tar" | cut -d' ' -f1)\""
done
manifest=
while read -r name; do
  image=${name##*/}
  case $image in
    agnhost:*) run='"Entrypoint": ["/agnhost"], "Cmd": ["pause"]' ;;
    pause:*) run='"Entrypoint": ["/agnhost", "pause"]' ;;
    nginx:*) run='"Cmd": ["/agnhost", "test-webserver"]' ;;
    coredns:*) run='"Entrypoint": ["/coredns"]' ;;
    regression-issue-74839:*) run='"Entrypoint": ["/regression-issue-74839"]' ;;
    busybox:* | distroless-iptables:* | glibc-dns-testing:*) run='"Cmd": ["sh"]' ;;
    *) continue ;;
  esac
  # The name is in the configuration too, as images with the same one would be the same image.
  cat >"$work/${image/:/-}.json" <<END
{"architecture": "$(dpkg --print-architecture)", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [$layers]},
 "config": {$run, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/busybox"], "Labels": {"name": "$name"}}}
END
  manifest+=${manifest:+,}"{\"Config\": \"${image/:/-}.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"debian.tar\", \"programs.tar\"]}"
done
echo "[$manifest]" >"$work/manifest.json"
tar -C "$work" --exclude ./root --exclude ./debian -cf "$file.part" .
mv "$file.part" "$file"
