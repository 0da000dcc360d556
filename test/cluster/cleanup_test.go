// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestCleanup runs "kube-proxy --cleanup", with Slipstream under that name, on a node
// where both have been: nothing of either is left.
func TestCleanup(t *testing.T) {
	e := newEnv(t)
	pod := e.pod(1, "web")
	svc := e.service("web", nil)
	n := e.Nodes[0]
	ours := e.start(proxies.Slipstream, n)
	e.knows(n, svc, pod)
	e.stop(ours)
	theirs := e.start(proxies.KubeProxyNFTables, n)
	e.untilProgrammed(proxies.KubeProxyNFTables, n, svc)
	e.stop(theirs)
	_, err := n.Run(t.Context(), asKubeProxy(t, e.dir), "--cleanup")
	e.check(err)
	e.noSlipstream(n)
	if left := e.leftovers(n); len(left) > 0 {
		t.Errorf("left of kube-proxy: %q", left)
	}
	if _, err := n.Connect(lab.TCP, clusterIP(svc, false), lab.Timeout(300*time.Millisecond)); err == nil {
		t.Error("the Service still answers")
	}
}
