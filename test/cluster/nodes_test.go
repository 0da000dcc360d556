// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// seenAs waits until a connection is answered, and checks which address the server has seen.
func (e *env) seenAs(from *lab.Machine, to netip.AddrPort, by *runningPod, want netip.Addr) {
	e.Helper()
	e.reaches(from, lab.TCP, to, by)
	r, err := from.Connect(lab.TCP, to)
	e.check(err)
	if r.Seen.Addr() != want {
		e.Errorf("%s to %v is seen as %v by %s, want %v", from.Name(), to, r.Seen.Addr(), by.Name(), want)
	}
}

// TestAcrossNodes connects clients and servers on different nodes. From pods to ClusterIPs,
// servers see the pod; through a NodePort of another node, that node.
func TestAcrossNodes(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	server := e.pod(2, "web")
	pod := e.client(0)
	svc := e.service("web", nodePorts)
	n1, n2, n3 := e.Nodes[0], e.Nodes[1], e.Nodes[2]
	for _, ipv6 := range families {
		t.Run(fmt.Sprint("IPv6=", ipv6), func(t *testing.T) {
			clusterIP, own := clusterIP(svc, ipv6), func(m *site.Node) netip.Addr { return m.Addr(ipv6) }
			e.seenAs(pod, clusterIP, server, pod.Addr(ipv6))
			e.seenAs(&n1.Machine, clusterIP, server, own(n1))
			e.seenAs(&n1.Machine, nodePort(svc, n2, ipv6), server, own(n2)) // and on to n3
			e.seenAs(pod, nodePort(svc, n2, ipv6), server, own(n2))
			e.seenAs(&e.Outside.Machine, nodePort(svc, n2, ipv6), server, own(n2))
			e.seenAs(&e.Outside.Machine, nodePort(svc, n3, ipv6), server, own(n3))
		})
	}
}

// TestNodeLoss disconnects a node. The others stop using its pods when the control plane has
// noticed; the node itself receives the missed changes when it is connected again.
func TestNodeLoss(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	lost := e.Nodes[2]
	kept, gone := e.pod(0, "web"), e.pod(2, "web")
	svc := e.service("web", nodePorts)
	client, there := e.client(1), e.client(2)
	e.everywhere(svc, kept, gone)

	e.check(disconnect(t.Context(), lost))
	mend := func() {
		ctx, cancel := ending()
		defer cancel()
		e.check(reconnect(ctx, lost))
	}
	mended := false
	defer func() {
		if !mended {
			mend()
		}
	}()
	// As the node lifecycle controller does for the pods of a node that is not heard of.
	e.check(gone.SetReady(t.Context(), false))
	for _, ipv6 := range families {
		e.reaches(client, lab.TCP, clusterIP(svc, ipv6), kept)
		e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[1], ipv6), kept)
	}
	e.reaches(client, lab.TCP, nodePort(svc, e.Nodes[0], false), kept)
	// From another pod: conntrack still has attempts of the first one's to reach the lost
	// pod, and a port that comes again would follow them.
	run := &traffic{env: e}
	run.load(e.client(1), lab.TCP, clusterIP(svc, false))
	run.load(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[0], false))
	run.more(100)

	// The lost node still sends to its own pod, as it cannot learn of changes.
	e.until("the pod of the lost node answers there", func() error {
		r, err := there.Connect(lab.TCP, clusterIP(svc, false), lab.Timeout(300*time.Millisecond))
		if err == nil && r.Server != gone.Name() {
			err = fmt.Errorf("answered by %s", r.Server)
		}
		return err
	})
	fresh := e.pod(1, "web")
	e.reaches(client, lab.TCP, clusterIP(svc, false), kept, fresh)
	run.fine("without the node")

	mended = true
	mend()
	e.reaches(there, lab.TCP, clusterIP(svc, false), kept, fresh)
	e.check(gone.SetReady(t.Context(), true))
	e.everywhere(svc, kept, fresh, gone)
	run.fine("with the node back")
}

// TestNodeObject creates a node's object late: ClusterIPs work without it; NodePorts need its
// addresses.
func TestNodeObject(t *testing.T) {
	e := newEnv(t)
	server := e.pod(0, "web")
	svc := e.service("web", nodePorts)
	late, err := e.Machine(nodes + int(e.number))
	e.check(err)
	client := e.clientOn(late)
	e.start(proxyKind(t), late)
	for _, ipv6 := range families {
		e.reaches(client, lab.TCP, clusterIP(svc, ipv6), server)
	}
	e.check(late.Register(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		e.check(late.Unregister(ctx))
	})
	for _, ipv6 := range families {
		e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, late, ipv6), server)
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	inside := e.service("web", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local })
	e.silent(client, clusterIP(inside, false))
}

// TestDeletedNode pulls a node's cable and deletes its Node and pod, as the control plane does
// after a while. With the option for it, a connection to the pod is then reset.
func TestDeletedNode(t *testing.T) {
	kind := proxyKind(t)
	if !kind.IsSlipstream() {
		t.Skip("an option of Slipstream")
	}
	e := newEnv(t)
	lost, err := e.Machine(nodes + int(e.number))
	e.check(err)
	e.check(lost.Register(t.Context()))
	e.start(kind, e.Nodes[0], func(o *proxies.Options) { o.Flags = append(o.Flags, "--reset-deleted-nodes") })
	pod, err := e.newPod(t.Context(), lost, e.name("doomed"), map[string]string{"app": "doomed"})
	e.check(err)
	svc := e.service("doomed", nil)
	client := e.client(0)
	to := clusterIP(svc, false)
	e.reaches(client, lab.TCP, to, pod)
	stream, err := client.Stream(lab.TCP, to, 20*time.Millisecond, lab.Timeout(time.Second))
	e.check(err)
	defer stream.Close()
	e.check(disconnect(t.Context(), lost))
	wait := func(what string, ok func(lab.StreamStats) bool) {
		t.Helper()
		e.until(what, func() error {
			if s := stream.Stats(); !ok(s) {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	wait("no echo", func(s lab.StreamStats) bool { return s.Failed > 0 })
	e.check(lost.Unregister(t.Context()))
	e.check(pod.Forget(t.Context()))
	wait("a reset", func(s lab.StreamStats) bool { return s.Ended })
	if err := stream.Stats().Last; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection ended by %v", err)
	}
}
