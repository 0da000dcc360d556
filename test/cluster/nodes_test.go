// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
)

// seenAs waits until a connection is answered, and wants the server to have seen a
// certain address.
func (w *world) seenAs(from *lab.Machine, to netip.AddrPort, by *site.Pod, want netip.Addr) {
	w.Helper()
	w.reaches(from, lab.TCP, to, by)
	r, err := from.Connect(lab.TCP, to)
	w.check(err)
	if r.Seen.Addr() != want {
		w.Errorf("%s to %v is seen as %v by %s, want %v", from.Name(), to, r.Seen.Addr(), by.Name(), want)
	}
}

// TestAcrossNodes has clients and servers on different nodes. From pods to ClusterIPs,
// servers see the pod; through a NodePort of another node, that node.
func TestAcrossNodes(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	server := w.pod(2, "web")
	pod := w.client(0)
	svc := w.service("web", nodePorts)
	n1, n2, n3 := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	for _, ipv6 := range families {
		t.Run(fmt.Sprint("IPv6=", ipv6), func(t *testing.T) {
			clusterIP, own := site.ClusterIP(svc, ipv6), func(m *site.Node) netip.Addr { return m.Addr(ipv6) }
			w.seenAs(pod, clusterIP, server, pod.Addr(ipv6))
			w.seenAs(&n1.Machine, clusterIP, server, own(n1))
			w.seenAs(&n1.Machine, site.NodePort(svc, n2, ipv6), server, own(n2)) // and on to n3
			w.seenAs(pod, site.NodePort(svc, n2, ipv6), server, own(n2))
			w.seenAs(&w.Outside.Machine, site.NodePort(svc, n2, ipv6), server, own(n2))
			w.seenAs(&w.Outside.Machine, site.NodePort(svc, n3, ipv6), server, own(n3))
		})
	}
}

// TestNodeLoss pulls a node's cable. The others go on without its pods once the control
// plane has noticed; the node itself, back again, learns what it has missed.
func TestNodeLoss(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	lost := w.Nodes[2]
	kept, gone := w.pod(0, "web"), w.pod(2, "web")
	svc := w.service("web", nodePorts)
	client, there := w.client(1), w.client(2)
	w.everywhere(svc, kept, gone)

	w.check(lost.Cut(t.Context()))
	mend := func() {
		ctx, cancel := ending()
		defer cancel()
		w.check(lost.Mend(ctx))
	}
	mended := false
	defer func() {
		if !mended {
			mend()
		}
	}()
	// As the node lifecycle controller does for the pods of a node that is not heard of.
	w.check(gone.SetReady(t.Context(), false))
	for _, ipv6 := range families {
		w.reaches(client, lab.TCP, site.ClusterIP(svc, ipv6), kept)
		w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[1], ipv6), kept)
	}
	w.reaches(client, lab.TCP, site.NodePort(svc, w.Nodes[0], false), kept)
	// From another pod: conntrack still has attempts of the first one's to reach the lost
	// pod, and a port that comes again would follow them.
	run := &traffic{w: w}
	run.load(w.client(1), lab.TCP, site.ClusterIP(svc, false))
	run.load(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[0], false))
	run.more(100)

	// The lost node still sends to its own pod: nobody can tell it otherwise.
	w.until("the pod of the lost node answers there", func() error {
		r, err := there.Connect(lab.TCP, site.ClusterIP(svc, false), lab.Timeout(300*time.Millisecond))
		if err == nil && r.Server != gone.Name() {
			err = fmt.Errorf("answered by %s", r.Server)
		}
		return err
	})
	fresh := w.pod(1, "web")
	w.reaches(client, lab.TCP, site.ClusterIP(svc, false), kept, fresh)
	run.fine("without the node")

	mended = true
	mend()
	w.reaches(there, lab.TCP, site.ClusterIP(svc, false), kept, fresh)
	w.check(gone.SetReady(t.Context(), true))
	w.everywhere(svc, kept, fresh, gone)
	run.fine("with the node back")
}

// TestNodeObject has a node whose object comes late: ClusterIPs do without it, NodePorts
// learn from it where they are.
func TestNodeObject(t *testing.T) {
	w := newWorld(t)
	server := w.pod(0, "web")
	svc := w.service("web", nodePorts)
	late, err := w.Machine(nodes + int(w.number))
	w.check(err)
	client := w.clientOn(late)
	w.start(proxyKind(t), late)
	for _, ipv6 := range families {
		w.reaches(client, lab.TCP, site.ClusterIP(svc, ipv6), server)
	}
	w.check(late.Register(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		w.check(late.Unregister(ctx))
	})
	for _, ipv6 := range families {
		w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, late, ipv6), server)
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	inside := w.service("web", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local })
	w.silent(client, site.ClusterIP(inside, false))
}
