// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestSlowStart adds two endpoints to one that the proxy has found at its start, which then gets most of the clients.
// When the new ones are warm, it gets its share. A client with session affinity keeps its endpoint all the time.
func TestSlowStart(t *testing.T) {
	spec := corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}
	x := newCrossing(t, 3, annotated(desired.AnnotationSlowStart, "1h", spec))
	check(t, x.Node.AddLocalRange(netip.MustParsePrefix("172.30.0.0/16")))
	n := 0
	next := func() (lab.Reply, error) { // a connection of another client each time
		n++
		return x.Node.Connect(lab.TCP, web, lab.Source(netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, byte(n >> 8), byte(n)}), 0)))
	}
	x.add(1, 3)
	// 10 of 12 clients are 83 of 100, and a third is 33.
	x.awaitFrom(t, "warming", next, func(n int) bool { return n > 60 && n < 100 })
	x.events <- []source.Event{{Type: source.Set, Object: annotated(desired.AnnotationSlowStart, "1s", spec)}}
	x.awaitFrom(t, "warm", next, func(n int) bool { return n < 50 })
	for range 10 {
		reply, err := x.Client.Connect(lab.TCP, web)
		check(t, err)
		if reply.Local.Port() != dataplanetest.FirstPort {
			t.Fatalf("a client with session affinity came to %s", reply.Local)
		}
	}
}
