// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/control"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
)

// patience bounds all waiting. It is long: clients of a lost API server try again up to
// half a minute later, and a test machine may be slow.
var patience = flag.Duration("patience", 90*time.Second, "how long to wait for what should come")

// families are IPv4 and IPv6, as values of "ipv6".
var families = []bool{false, true}

// world is what a test has: the cluster, and all that it made in it, which goes away with
// the test.
type world struct {
	*testing.T
	*site.Site
	dir    string
	number int64                      // of the test, for names
	access map[string]*control.Access // by node
	names  map[string]int             // how many there are
}

// serial makes names of one test different from those of the others.
var serial atomic.Int64

// newWorld returns a world without proxies.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, Site: cluster(t), number: serial.Add(1), access: map[string]*control.Access{}, names: map[string]int{}}
	w.dir = *keepLogs
	if w.dir == "" {
		w.dir = t.TempDir()
	}
	return w
}

// name makes a name that nothing had before.
func (w *world) name(of string) string {
	w.names[of]++
	return fmt.Sprintf("%s-%d-%d", of, w.number, w.names[of])
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// ending is a context for what is done after the test.
func ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// pod makes a pod on a node, by its number from 0, that answers and has the label app.
func (w *world) pod(node int, app string, labels ...string) *site.Pod {
	w.Helper()
	all := map[string]string{"app": app}
	for i := 0; i+1 < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	p, err := w.Nodes[node].Pod(w.Context(), w.name(app), all)
	w.check(err)
	w.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			w.Error(err)
		}
	})
	return p
}

// client makes a pod to connect from.
func (w *world) client(node int) *lab.Machine { return w.clientOn(w.Nodes[node]) }

func (w *world) clientOn(n *site.Node) *lab.Machine {
	w.Helper()
	p, err := n.Idle(w.name("client"))
	w.check(err)
	w.Cleanup(func() {
		if err := p.Delete(); err != nil {
			w.Error(err)
		}
	})
	return &p.Machine
}

// service makes a Service of the pods with the label app.
func (w *world) service(app string, change func(*corev1.ServiceSpec)) *corev1.Service {
	w.Helper()
	svc, err := w.NewService(w.Context(), w.name(app), app, change)
	w.check(err)
	w.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if err := w.DeleteService(ctx, svc.Name); err != nil {
			w.Error(err)
		}
	})
	return svc
}

func nodePorts(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }

// until waits for something to be without an error.
func (w *world) until(what string, ok func() error) {
	w.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < *patience; time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	w.Fatalf("waited in vain: %s: %v", what, err)
}
