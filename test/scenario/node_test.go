// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// node is a node's proxy, without the loop around it.
type node struct {
	name      string
	config    dataplane.Config
	desired   desired.Config
	addrs     []netip.Addr // on its interfaces
	others    []*node
	state     *desired.State
	describer describer
	kernel    dataplane.Dataplane // nil without a kernel
	flows     *conntrack.Conn
	in        func(func() error) error // calls a function in its network namespace
	relays    *loopback.Server
}

// content returns the content that the node's kernel should have.
func (n *node) content() *dataplane.Content { return dataplane.ContentOf(&n.state.Full().Change) }

// object is the Node with the node's addresses.
func (n *node) object() *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	for _, a := range n.addrs {
		if !a.IsLoopback() {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
	}
	return o
}

// learn makes the node's state from all objects.
func (n *node) learn(all objects) {
	n.state = desired.New(n.desired)
	for _, other := range n.others {
		n.state.SetNode(other.object())
	}
	all.addTo(n.state)
	n.state.SetNodeAddresses(n.addrs)
}

// start makes the node's dataplane and programs the whole state.
func (n *node) start(t *testing.T, d *datadriven.TestData, mode Mode) {
	if mode != nil {
		var err error
		if n.kernel, err = mode(n.config); err != nil {
			d.Fatalf(t, "node %s: %v", n.name, err)
		}
		if n.flows, err = conntrack.New(n.config.NetNS); err != nil {
			d.Fatalf(t, "node %s: %v", n.name, err)
		}
		n.relays = loopback.New(context.WithoutCancel(t.Context()), loopback.Options{
			In: n.in, UDPTimeout: time.Hour, UDPStreamTimeout: time.Hour,
			Report: func(_ types.NamespacedName, err error) { t.Errorf("node %s: %v", n.name, err) },
		})
	}
	n.reconcile(t, d)
}

// reconcile programs the whole state and returns its description.
func (n *node) reconcile(t *testing.T, d *datadriven.TestData) string {
	full := n.state.Full()
	if n.kernel != nil {
		_, err := n.kernel.Reconcile(t.Context(), &full.Change)
		n.finish(t, d, full, err)
	}
	return n.describer.full(full)
}

// program applies the change since the last call to the node's dataplane, as the proxy
// does, and returns its description.
func (n *node) program(t *testing.T, d *datadriven.TestData) string {
	change := n.state.Change()
	if change.Rebuild {
		return n.reconcile(t, d)
	}
	out := n.describer.change(change)
	if n.kernel != nil {
		_, err := n.kernel.Apply(t.Context(), &change.Change)
		n.finish(t, d, change, err)
	}
	return out
}

// finish changes relays and deletes stale flows from conntrack after an update that
// returned err. It fails the test unless the kernel has the content of the state then.
func (n *node) finish(t *testing.T, d *datadriven.TestData, u *desired.Update, err error) {
	t.Helper()
	stale := slices.Concat(u.Flows, u.AllFlows)
	if err == nil {
		n.relays.Set(u.Relays)
		_, err = n.flows.Clean(t.Context(), stale)
	}
	if ender, ok := n.kernel.(dataplane.FlowEnder); ok && err == nil {
		err = ender.EndFlows(t.Context(), stale)
	}
	var v dataplane.Verified
	if err == nil {
		v, err = dataplane.Verify(t.Context(), n.kernel.(dataplane.Reader), n.state.Reported())
	}
	diff := v.String()
	if len(v.Differences) == 0 && err == nil {
		diff, err = n.readsOne(t)
	}
	if len(v.Differences) > 0 || diff != "" && err == nil {
		d.Fatalf(t, "node %s: the kernel differs:\n%s", n.name, diff)
	}
	if err == nil {
		err = n.kernel.Check(t.Context())
	}
	if err != nil {
		d.Fatalf(t, "node %s: %v", n.name, err)
	}
}

// restart restarts the node's proxy, with the kernel's content unchanged.
func (n *node) restart(t *testing.T, d *datadriven.TestData, s *story) {
	before := n.content().Lines()
	if n.kernel != nil {
		n.relays.Close()
		if err := errors.Join(n.kernel.Close(), n.flows.Close()); err != nil {
			d.Fatalf(t, "node %s: %v", n.name, err)
		}
	}
	n.learn(s.objects)
	if after := n.content().Lines(); !slices.Equal(before, after) {
		d.Fatalf(t, "node %s: the order of objects makes a difference:\n%s\nand in reverse:\n%s",
			n.name, strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	n.start(t, d, s.mode)
}

func (n *node) close(t *testing.T) {
	if n.kernel == nil || n.flows == nil {
		return
	}
	n.relays.Close()
	if err := n.kernel.Cleanup(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("node %s: cleanup: %v", n.name, err)
	}
	if got, err := n.kernel.(dataplane.Reader).Read(context.WithoutCancel(t.Context())); err != nil || len(got.Lines()) > 0 {
		t.Errorf("node %s: left by cleanup: %v %v", n.name, got.Lines(), err)
	}
	if err := errors.Join(n.kernel.Close(), n.flows.Close()); err != nil {
		t.Errorf("node %s: %v", n.name, err)
	}
}
