// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// TestUDP replaces the pod behind clients that never change their port, so that conntrack
// would send them to the old one for ever.
func TestUDP(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	old := w.pod(0, "dns")
	svc := w.service("dns", nodePorts)
	w.everywhere(svc, old)
	var streams []*lab.Stream
	for i := range w.Nodes {
		for _, ipv6 := range families {
			to := site.ClusterIP(svc, ipv6)
			w.reaches(&w.Nodes[i].Machine, lab.UDP, to, old)
			s, err := w.client(i).Stream(lab.UDP, to, 20*time.Millisecond)
			w.check(err)
			defer s.Close()
			streams = append(streams, s)
		}
	}
	moved := func(to *site.Pod) {
		t.Helper()
		for i, s := range streams {
			w.until(fmt.Sprintf("stream %d is answered by %s", i, to.Name()), func() error {
				if st := s.Stats(); st.Server != to.Name() {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
		}
	}
	// A pod that comes before the old one goes, and one that comes later.
	fresh := w.pod(1, "dns")
	w.check(old.Terminate(t.Context()))
	w.check(old.Remove(t.Context()))
	moved(fresh)
	w.check(fresh.Remove(t.Context()))
	w.silent(&w.Nodes[0].Machine, site.ClusterIP(svc, false))
	last := w.pod(2, "dns")
	moved(last)
}
