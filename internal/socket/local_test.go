// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestNodeLocal has a process on the node that listens at a ClusterIP which an interface of the node has, as NodeLocal
// DNSCache does. Without sockets it answers, so it has to with them.
func TestNodeLocal(t *testing.T) {
	w := serve(t, 1, nil)
	for _, args := range [][]string{
		{"link", "add", "nodelocaldns", "type", "veth", "peer", "name", "nodelocalpeer"},
		{"address", "add", frontends[0].Addr().String() + "/32", "dev", "nodelocaldns"},
		{"link", "set", "nodelocaldns", "up"},
	} {
		_, err := w.node.Run(t.Context(), "ip", args...)
		w.check(err)
	}
	own := []netip.Addr{netip.MustParseAddr("192.168.100.11")}
	w.state.SetNodeAddresses(append(own, frontends[0].Addr())) // netif.WatchAddresses finds it
	w.apply()
	_, err := w.node.Serve(lab.TCP, frontends[0])
	w.check(err)
	for _, from := range []*lab.Machine{&w.client.Machine, &w.node.Machine} {
		reply, err := from.Connect(lab.TCP, frontends[0])
		w.check(err)
		if reply.Local != frontends[0] {
			t.Errorf("%s: %s answered, want the node's own process at %s", from.Name(), reply.Local, frontends[0])
		}
	}
	w.connects(&w.client.Machine, frontends[2], true)
	w.connects(&w.client.Machine, frontends[4], true)
	w.reconcile()
	reply, err := w.client.Connect(lab.TCP, frontends[0])
	w.check(err)
	if reply.Local != frontends[0] {
		t.Errorf("after Reconcile, %s answered", reply.Local)
	}
	w.state.SetNodeAddresses(own)
	w.apply()
	reply, err = w.client.Connect(lab.TCP, frontends[0])
	w.check(err)
	if reply.Local.Port() != firstPort {
		t.Errorf("the node does not serve it any more, but %s answered", reply.Local)
	}
}
