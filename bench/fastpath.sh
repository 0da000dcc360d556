#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures what the fast path gains and costs: all that docs/measurements.md reports of
# it. If this kernel has no flowtables, the User Mode Linux test kernel is measured
# instead (test/README.md). Takes some minutes; needs root.
#
#   fastpath.sh [directory]   for the results: tables, JSON
#
# ROUNDS scales all numbers of rounds, in percent (ROUNDS=10 for a quick look).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

out=${1:-tmp/bench-fastpath}
percent=${ROUNDS:-100}
go=${GO:-go}
mkdir -p "$out"

runner=()
if ! unshare -n nft 'add table inet t; add flowtable inet t f { hook ingress priority 0; }' 2>/dev/null; then
  echo "this kernel has no flowtables: measuring the User Mode Linux test kernel"
  : "${SLIPSTREAM_TESTKERNEL:=$(test/kernel/build.sh 6.12)}"
  export SLIPSTREAM_TESTKERNEL
  "$go" build -o "$out/run" ./test/kernel/run
  runner=("$out/run" -timeout 30m)
fi

# measure NAME ROUNDS ARGUMENT... runs one benchmark.
measure() {
  local name=$1 rounds=$(($2 * percent / 100))
  shift 2
  [ "$rounds" -gt 0 ] || rounds=1
  echo
  echo "== bench forward --firewall=false $* --rounds $rounds"
  # A virtual machine knows nothing of its host's load.
  echo "host: Linux $(uname -r), load average $(cut -d ' ' -f 1-3 /proc/loadavg) before"
  "${runner[@]}" bin/bench forward --firewall=false "$@" --rounds "$rounds" --save "$out/$name.json" | tee "$out/$name.txt"
  echo "host: load average $(cut -d ' ' -f 1-3 /proc/loadavg) after"
}

measure throughput 30 --paths off,1,20 --measure aggregated,packets,udp
measure crr 60 --paths off,1,20 --measure crr
echo
echo "results are in $out"
