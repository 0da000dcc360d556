// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// TestCleanup runs "kube-proxy --cleanup", with Slipstream under that name, on a node
// where both have been: nothing of either is left.
func TestCleanup(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1, "web")
	svc := w.service("web", nil)
	n := w.Nodes[0]
	ours := w.start(proxies.Slipstream, n)
	w.knows(n, svc, pod)
	w.stop(ours)
	theirs := w.start(proxies.KubeProxyNFTables, n)
	w.untilProgrammed(proxies.KubeProxyNFTables, n, svc)
	w.stop(theirs)
	w.check(proxies.CleanupAsKubeProxy(t.Context(), n.Node, proxies.Options{Dir: w.dir, Binary: slipstreamBinary(t)}))
	w.noSlipstream(n)
	if left := w.leftovers(n); len(left) > 0 {
		t.Errorf("left of kube-proxy: %q", left)
	}
	if _, err := n.Connect(lab.TCP, site.ClusterIP(svc, false), lab.Timeout(300*time.Millisecond)); err == nil {
		t.Error("the Service still answers")
	}
}
