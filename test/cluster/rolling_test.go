// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// everyWay is new connections to a Service from a pod of each node, from a node and from
// outside.
func (e *env) everyWay(to *corev1.Service) *traffic {
	e.Helper()
	r := &traffic{env: e}
	for i := range e.Nodes {
		r.load(e.client(i), lab.TCP, clusterIP(to, i%2 == 1))
	}
	r.load(&e.Nodes[1].Machine, lab.TCP, clusterIP(to, false))
	r.load(&e.Outside.Machine, lab.TCP, nodePort(to, e.Nodes[2], false))
	r.more(5)
	return r
}

// TestRollingUpdate replaces the pods of a Service one by one, as a Deployment does: a new one
// is ready before an old one is terminated, which still answers for a while. No connection
// fails, and connections to an old pod continue until it closes them.
func TestRollingUpdate(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	var old, fresh []*runningPod
	for i := range nodes {
		old = append(old, e.pod(i, "web"))
	}
	svc := e.service("web", nodePorts)
	e.everywhere(svc, old...)
	e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[2], false), old...)
	run := e.everyWay(svc)

	for i, leaving := range old {
		fresh = append(fresh, e.replace(run, svc, i, leaving))
	}
	e.everywhere(svc, fresh...)
	run.fine("at the end")
}

// replace replaces a pod by a new one on a node, by its number, as a rolling update does.
func (e *env) replace(run *traffic, svc *corev1.Service, node int, leaving *runningPod) (fresh *runningPod) {
	e.Helper()
	stream := run.streamTo(leaving, e.client(nodes-1-node), clusterIP(svc, false))
	fresh = e.pod(node, "web")
	e.check(leaving.Terminate(e.Context()))
	run.unused(leaving)
	run.more(5)
	if st := stream.Stats(); st.Server != leaving.Name() {
		e.Errorf("stream to %s: %+v", leaving.Name(), st)
	}
	leaving.Drain()
	e.check(stream.Close())
	e.check(leaving.Remove(e.Context()))
	run.more(5)
	return fresh
}

// TestAllTerminating restarts the only pod of a Service. It is terminating before there is
// another one.
func TestAllTerminating(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	old := e.pod(0, "web")
	svc := e.service("web", nodePorts)
	e.everywhere(svc, old)
	e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[2], false), old)
	run := e.everyWay(svc)

	e.check(old.Terminate(t.Context()))
	e.untilTerminating(svc)
	run.more(100)
	if old.Served() == 0 {
		t.Fatal("no pod answered")
	}
	fresh := e.pod(1, "web")
	run.unused(old)
	e.check(old.Remove(t.Context()))
	e.everywhere(svc, fresh)
	run.more(5)
}
