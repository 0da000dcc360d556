// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestUDP replaces the pod behind clients that never change their port, so that conntrack
// would send them to the old one for ever.
func TestUDP(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	old := e.pod(0, "dns")
	svc := e.service("dns", nodePorts)
	e.everywhere(svc, old)
	var streams []*lab.Stream
	for i := range e.Nodes {
		for _, ipv6 := range families {
			to := clusterIP(svc, ipv6)
			e.reaches(&e.Nodes[i].Machine, lab.UDP, to, old)
			s, err := e.client(i).Stream(lab.UDP, to, 20*time.Millisecond)
			e.check(err)
			defer s.Close()
			streams = append(streams, s)
		}
	}
	moved := func(to *runningPod) {
		t.Helper()
		for i, s := range streams {
			e.until(fmt.Sprintf("stream %d is answered by %s", i, to.Name()), func() error {
				if st := s.Stats(); st.Server != to.Name() {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
		}
	}
	// A pod that comes before the old one goes, and one that comes later.
	fresh := e.pod(1, "dns")
	e.check(old.Terminate(t.Context()))
	e.check(old.Remove(t.Context()))
	moved(fresh)
	e.check(fresh.Remove(t.Context()))
	e.silent(&e.Nodes[0].Machine, clusterIP(svc, false))
	last := e.pod(2, "dns")
	moved(last)
}
