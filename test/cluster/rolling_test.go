// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
)

// everyWay is new connections to a Service from a pod of each node, from a node and from
// outside.
func (w *world) everyWay(to *corev1.Service) *traffic {
	w.Helper()
	r := &traffic{w: w}
	for i := range w.Nodes {
		r.load(w.client(i), lab.TCP, site.ClusterIP(to, i%2 == 1))
	}
	r.load(&w.Nodes[1].Machine, lab.TCP, site.ClusterIP(to, false))
	r.load(&w.Outside.Machine, lab.TCP, site.NodePort(to, w.Nodes[2], false))
	r.more(5)
	return r
}

// TestRollingUpdate replaces the pods of a Service one by one, as a Deployment does: a new
// one is ready before an old one is told to end, which then still answers for a while. No
// connection fails, and those that an old pod has go on until it closes them.
func TestRollingUpdate(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	var old, fresh []*site.Pod
	for i := range nodes {
		old = append(old, w.pod(i, "web"))
	}
	svc := w.service("web", nodePorts)
	w.everywhere(svc, old...)
	w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[2], false), old...)
	run := w.everyWay(svc)

	for i, leaving := range old {
		fresh = append(fresh, w.replace(run, svc, i, leaving))
	}
	w.everywhere(svc, fresh...)
	run.fine("at the end")
}

// replace replaces a pod by a new one on a node, by its number, as a rolling update does.
func (w *world) replace(run *traffic, svc *corev1.Service, node int, leaving *site.Pod) (fresh *site.Pod) {
	w.Helper()
	stream := run.streamTo(leaving, w.client(nodes-1-node), site.ClusterIP(svc, false))
	fresh = w.pod(node, "web")
	w.check(leaving.Terminate(w.Context()))
	run.unused(leaving)
	run.more(5)
	if st := stream.Stats(); st.Server != leaving.Name() {
		w.Errorf("stream to %s: %+v", leaving.Name(), st)
	}
	leaving.Drain()
	w.check(stream.Close())
	w.check(leaving.Remove(w.Context()))
	run.more(5)
	return fresh
}

// TestAllTerminating restarts the only pod of a Service: it is told to end before there is
// another one. As long as it answers, it gets the connections.
func TestAllTerminating(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	old := w.pod(0, "web")
	svc := w.service("web", nodePorts)
	w.everywhere(svc, old)
	w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[2], false), old)
	run := w.everyWay(svc)

	w.check(old.Terminate(t.Context()))
	w.untilTerminating(svc)
	run.more(100)
	if old.Served() == 0 {
		t.Fatal("nobody came")
	}
	fresh := w.pod(1, "web")
	run.unused(old)
	w.check(old.Remove(t.Context()))
	w.everywhere(svc, fresh)
	run.more(5)
}
