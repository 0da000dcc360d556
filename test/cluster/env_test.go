// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// patience bounds all waiting. It is long: clients of a lost API server try again up to
// a minute later, and a test machine may be slow.
var patience = flag.Duration("patience", 3*time.Minute, "how long to wait for what should come")

// connectTimeout is for machines that stand still for seconds.
var connectTimeout = flag.Duration("connect-timeout", time.Second, "how long a connection, or an answer on it, may take; TCP repeats a lost SYN after a second")

// families are IPv4 and IPv6, as values of "ipv6".
var families = []bool{false, true}

// env is a test's part of the cluster: the objects that it made, which are deleted after the
// test.
type env struct {
	*testing.T
	*system
	dir    string
	number int64                   // of the test, for names
	access map[string]*site.Access // by node
	names  map[string]int          // how many there are
}

// serial makes names of one test different from those of the others.
var serial atomic.Int64

// newEnv returns an env without proxies.
func newEnv(t *testing.T) *env { return newEnvIn(t, cluster(t)) }

// newEnvIn returns an env without proxies in a cluster.
func newEnvIn(t *testing.T, s *system) *env {
	t.Helper()
	e := &env{T: t, system: s, number: serial.Add(1), access: map[string]*site.Access{}, names: map[string]int{}}
	e.dir = *keepLogs
	if e.dir == "" {
		e.dir = t.TempDir()
	}
	return e
}

// name makes a name that nothing had before.
func (e *env) name(of string) string {
	e.names[of]++
	return fmt.Sprintf("%s-%d-%d", of, e.number, e.names[of])
}

func (e *env) check(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// ending is a context for the work after a test.
func ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// pod makes a pod on a node, by its number from 0, that answers and has the label app.
func (e *env) pod(node int, app string, labels ...string) *runningPod {
	e.Helper()
	all := map[string]string{"app": app}
	for i := 0; i+1 < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	p, err := e.newPod(e.Context(), e.Nodes[node], e.name(app), all)
	e.check(err)
	e.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			e.Error(err)
		}
	})
	return p
}

// client makes a pod to connect from.
func (e *env) client(node int) *lab.Machine { return e.clientOn(e.Nodes[node]) }

func (e *env) clientOn(n *site.Node) *lab.Machine {
	e.Helper()
	p, err := n.Idle(e.name("client"))
	e.check(err)
	e.Cleanup(func() {
		if err := p.Delete(); err != nil {
			e.Error(err)
		}
	})
	return &p.Machine
}

// service makes a Service of the pods with the label app.
func (e *env) service(app string, change func(*corev1.ServiceSpec)) *corev1.Service {
	e.Helper()
	svc, err := e.newService(e.Context(), e.name(app), app, change)
	e.check(err)
	e.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if err := e.deleteService(ctx, svc.Name); err != nil {
			e.Error(err)
		}
	})
	return svc
}

func nodePorts(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }

// until waits for something to be without an error.
func (e *env) until(what string, ok func() error) {
	e.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < *patience; time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	e.Fatalf("waited in vain: %s: %v", what, err)
}
