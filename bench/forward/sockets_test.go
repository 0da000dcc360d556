// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestSockets measures once, and asks that connections with the setting "sockets" do not need the
// proxy's rules, which those with "nftables" do.
func TestSockets(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.CGroupBPF)
	kerneltest.CGroup(t)
	o := Options{
		Rounds: 1, Paths: []string{"direct", "sockets", "nftables"}, Measures: []string{"crr"},
		Seconds: 1, Connections: 100, Streams: 1, Services: 100,
	}
	r, err := bench.Run(bounded(t), "forward", &o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Subjects) != len(o.Paths) || len(r.Find(crrMedian.Name).Outcomes) != len(o.Paths) {
		t.Errorf("subjects: %v", r.Subjects)
	}

	n, err := newNetwork(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	defer n.useSockets(t.Context(), false)
	if err := n.node.proxy.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop, err := bench.Serve(n.server.Namespace, n.backend(requestPort), respond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { go stop() }()
	for _, s := range o.settings() {
		if err := n.set(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		dialing, cancel := context.WithTimeout(t.Context(), time.Second)
		c, err := n.client.DialContext(dialing, "tcp", n.frontend(requestPort).String())
		if err == nil {
			c.Close()
		}
		cancel()
		if (err == nil) != (s.Name != "nftables") {
			t.Errorf("%s without rules: %v", s.Name, err)
		}
	}
}
