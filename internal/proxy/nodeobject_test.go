// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"flag"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// notes are the reasons and texts of Events that were sent.
type notes chan string

func (n notes) Warning(reason, note string) { n <- reason + " " + note }

func (n notes) OnService(service types.NamespacedName, reason, note string) {
	n <- reason + " " + service.String() + " " + note
}

// next returns the next Event.
func (n notes) next(t *testing.T) string {
	t.Helper()
	select {
	case note := <-n:
		return note
	case <-time.After(patience):
		t.Fatal("nothing was reported")
		return ""
	}
}

// quiet fails the test if an Event is sent within a short time.
func (n notes) quiet(t *testing.T, what string) {
	t.Helper()
	select {
	case note := <-n:
		t.Errorf("%s: reported %q", what, note)
	case <-time.After(100 * time.Millisecond):
	}
}

// TestNodeMissing checks that a missing Node object is reported once each time, with the
// features that do not work without it.
func TestNodeMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported := make(notes, 10)
		config := desired.Config{NodeName: "here", NodePorts: desired.NodePortAddresses{Primary: true}}
		l := startWith(t, &recorder{}, desired.New(config), Options{NodeName: "here", NodeRequired: true, NodeWait: 10 * time.Millisecond, Events: reported})
		reported.quiet(t, "before the initial objects are complete")
		there := node("here", func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
		})
		gone := node("here", func(*corev1.Node) {})
		gone.Type = source.Delete

		l.events <- []source.Event{synced, node("there", func(*corev1.Node) {})}
		if got := reported.next(t); !strings.HasPrefix(got, `NodeMissing there is no Node "here"`) ||
			!strings.Contains(got, "NodePorts answer nowhere") || !strings.Contains(got, "load balancers do not send traffic here") {
			t.Errorf("reported %q", got)
		}
		l.events <- []source.Event{service(1)}
		reported.quiet(t, "it is still missing")
		l.events <- []source.Event{there}
		reported.quiet(t, "it was created")
		l.events <- []source.Event{gone}
		if got := reported.next(t); !strings.HasPrefix(got, `NodeMissing there is no Node "here"`) || strings.Contains(got, "nowhere") {
			t.Errorf("deleted again, reported %q", got)
		}
		reported.quiet(t, "it is still deleted")
	})
}

// TestNodeNotMissing checks that no Event is sent if the Node is delivered in time, or not
// needed.
func TestNodeNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported := make(notes, 10)
		o := Options{NodeName: "here", NodeRequired: true, NodeWait: 200 * time.Millisecond, Events: reported}
		l := start(t, o)
		l.events <- []source.Event{synced}
		l.events <- []source.Event{node("here", func(*corev1.Node) {})}
		o.NodeRequired, o.NodeWait = false, time.Millisecond
		alone := start(t, o)
		alone.events <- []source.Event{synced}
		time.Sleep(o.NodeWait)
		for range 3 {
			reported.quiet(t, "nothing is missing")
		}
	})
}

// logged is what klog writes meanwhile.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) count(text string) int {
	klog.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// readLog redirects klog to the returned log until the test ends.
func readLog(t *testing.T) *logged {
	t.Helper()
	var log logged
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL", "-one_output"}); err != nil {
		t.Fatal(err)
	}
	klog.SetOutput(&log)
	t.Cleanup(func() {
		klog.SetOutput(bytes.NewBuffer(nil))
		_ = flags.Parse([]string{"-logtostderr=true", "-one_output=false"})
	})
	return &log
}

// TestNoPodCIDRs checks that a Node without ranges for pods is reported once, if they are
// needed.
func TestNoPodCIDRs(t *testing.T) {
	log := readLog(t)
	without := node("here", func(*corev1.Node) {})
	with := node("here", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24"} })
	for i, c := range []struct {
		needed bool
		events []source.Event
		want   int
	}{
		{true, []source.Event{without, synced, without, with, without}, 1},
		{true, []source.Event{synced, without}, 1},
		{true, []source.Event{without, with, synced}, 0},
		{true, []source.Event{with, synced, without}, 0},
		{true, []source.Event{synced}, 0},
		{false, []source.Event{synced, without}, 0},
	} {
		before := log.count("spec.podCIDRs")
		p := New(script(nil), desired.New(desired.Config{}), &recorder{}, metrics.New(), Options{NodeName: "here", PodCIDRs: c.needed})
		for _, e := range c.events {
			p.applyBatch([]source.Event{e})
		}
		if got := log.count("spec.podCIDRs") - before; got != c.want {
			t.Errorf("%d: reported %d times; want %d", i, got, c.want)
		}
	}
}

// TestPrimaryFamilyIsNotServed checks that the loop ends, as kube-proxy does, when the node's
// primary address is of a family that is not served, and not when another one is.
func TestPrimaryFamilyIsNotServed(t *testing.T) {
	node := func(ips ...string) source.Event {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return source.Event{Type: source.Set, Object: n}
	}
	config := desired.Config{NodeName: "here"}
	config.Without[desired.IPv6] = true
	l := startWith(t, &recorder{}, desired.New(config), Options{NodeName: "here"})
	l.events <- []source.Event{node("192.0.2.1", "2001:db8::1"), service(1), synced}
	l.wait("full +s1")
	l.events <- []source.Event{node("2001:db8::1", "192.0.2.1")}
	select {
	case err := <-l.done:
		if err == nil || !strings.Contains(err.Error(), "primary address, IPv6, is not served") {
			t.Errorf("error %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the loop goes on")
	}
	config.NodeIP = netip.MustParseAddr("2001:db8::1") // bindAddress
	if f, lacks := desired.New(config).LacksPrimary(); !lacks || f != desired.IPv6 {
		t.Errorf("with a node IP: %s, %t", f, lacks)
	}
}
