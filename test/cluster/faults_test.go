// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// How long the API server is away. Long enough that clients have given up some requests,
// and wait between attempts.
const (
	pauseFor = 20 * time.Second
	downFor  = 12 * time.Second
)

// TestAPIServerHangs has an API server that no longer answers, while changes queue up.
func TestAPIServerHangs(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	s := newSwapped(w)
	s.use()

	w.check(w.Plane.Pause())
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			w.check(w.Plane.Resume())
		}
	}
	defer resume()
	begin := time.Now()
	s.run.more(int64(pauseFor / (30 * time.Millisecond)))
	// Changes come late, as the client gives up after some 45 s.
	changes := make(chan error, 2)
	leaving := s.pods[0]
	go func() { changes <- leaving.Terminate(context.Background()) }()
	go func() { changes <- s.pods[1].SetReady(context.Background(), true) }()
	time.Sleep(max(time.Until(begin.Add(pauseFor)), 2*time.Second))
	select {
	case err := <-changes:
		t.Fatalf("the API server still answers: %v", err)
	default:
	}
	s.run.fine("without an API server")
	resume()
	for range cap(changes) {
		w.check(<-changes)
	}
	fresh := w.pod(2, "web")
	s.run.unused(leaving)
	w.everywhere(s.svc, s.pods[1], fresh)
	s.run.more(5)
}

// TestAPIServerSlow has an API server that only now and then does something, so that
// watches are late and changes come in heaps, during a rolling update.
func TestAPIServerSlow(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	old := []*site.Pod{w.pod(0, "web"), w.pod(1, "web")}
	svc := w.service("web", nodePorts)
	w.everywhere(svc, old...)
	w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[2], false), old...)
	run := w.everyWay(svc)
	end, ended := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for stutter := true; stutter && err == nil; {
			err = w.Plane.Pause()
			time.Sleep(300 * time.Millisecond)
			err = errors.Join(err, w.Plane.Resume())
			select {
			case <-end:
				stutter = false
			case <-time.After(60 * time.Millisecond):
			}
		}
		ended <- err
	}()
	defer func() {
		close(end)
		w.check(<-ended)
	}()
	var fresh []*site.Pod
	for i, leaving := range old {
		fresh = append(fresh, w.replace(run, svc, i, leaving))
	}
	w.everywhere(svc, fresh...)
	run.fine("at the end")
}

// TestAPIServerGone ends the API server while connections are made, and starts it again
// later. One node's proxy starts anew in the meantime; another's network is down for
// longer, so that it comes back to a history that etcd has compacted (410 Gone), in which
// a Service was deleted; and the third one's token is no longer good.
func TestAPIServerGone(t *testing.T) {
	w := newWorld(t)
	running := w.startAll()
	s := newSwapped(w)
	s.use()
	restarted, behind, refused := w.Nodes[0], w.Nodes[1], w.Nodes[2]

	cut := false
	mend := func() {
		if !cut {
			return
		}
		cut = false
		ctx, cancel := ending()
		defer cancel()
		w.check(behind.Mend(ctx))
	}
	defer mend()
	passing := w.pod(1, "passing")
	gone, err := w.NewService(t.Context(), w.name("gone"), "passing", nil)
	w.check(err)
	w.everywhere(gone, passing)
	w.check(behind.Cut(t.Context(), w.Plane.Host.Addr(false)))
	cut = true
	// Before the server ends: what it has sent by then is still delivered.
	old := w.revision()
	w.check(w.access[refused.Name()].Revoke(t.Context()))
	w.check(w.Plane.Compact(t.Context(), w.revision()))

	down := true
	start := func() {
		if down {
			down = false
			ctx, cancel := ending()
			defer cancel()
			w.check(w.Plane.StartAPI(ctx))
		}
	}
	defer start()
	w.check(w.Plane.Kill())
	w.stop(running[0])
	w.start(proxyKind(t), restarted)
	time.Sleep(downFor)
	s.run.more(20)
	s.run.fine("without an API server")
	start()
	w.isGone(old)

	w.check(w.DeleteService(t.Context(), gone.Name))
	s.pods = append(s.pods, w.pod(2, "web"))
	w.knows(restarted, s.svc, s.pods...)
	for _, n := range []*site.Node{behind, refused} {
		w.notYet(n, s.svc, s.pods[2])
	}
	mend()
	w.knows(behind, s.svc, s.pods...)
	w.silent(&behind.Machine, site.ClusterIP(gone, false))
	w.check(w.access[refused.Name()].Renew(t.Context()))
	w.knows(refused, s.svc, s.pods...)
	s.run.more(20)
}

// knows waits until a Service is answered by these pods on a node.
func (w *world) knows(n *site.Node, svc *corev1.Service, pods ...*site.Pod) {
	w.Helper()
	for _, ipv6 := range families {
		w.reaches(&n.Machine, lab.TCP, site.ClusterIP(svc, ipv6), pods...)
	}
}

// notYet wants a pod not to be used from a node.
func (w *world) notYet(n *site.Node, svc *corev1.Service, pod *site.Pod) {
	w.Helper()
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		got, err := reached(&n.Machine, lab.TCP, site.ClusterIP(svc, false), 10)
		w.check(err)
		if got[pod.Name()] > 0 {
			w.Fatalf("%s knows of %s, which it cannot", n.Name(), pod.Name())
		}
	}
}

// revision is the cluster's resourceVersion.
func (w *world) revision() string {
	w.Helper()
	list, err := w.Plane.Client.CoreV1().Services(site.Namespace).List(w.Context(), metav1.ListOptions{Limit: 1})
	w.check(err)
	return list.ResourceVersion
}

// isGone wants the API server to refuse to watch from a revision on.
func (w *world) isGone(revision string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
	defer cancel()
	watcher, err := w.Plane.Client.DiscoveryV1().EndpointSlices("").Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
	if err == nil {
		defer watcher.Stop()
		e, ok := <-watcher.ResultChan()
		if !ok {
			w.Fatal("the watch ended without a word")
		}
		if status, is := e.Object.(*metav1.Status); e.Type == watch.Error && is && status.Code == http.StatusGone {
			return
		}
		err = fmt.Errorf("it says %v", e)
	}
	w.Fatalf("a watch from the old revision on is not Gone: %v", err)
}

// TestHealth wants a node that the cluster autoscaler is about to delete to say so to load
// balancers, and to be alive nevertheless.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	n := w.Nodes[0]
	p := w.start(proxyKind(t), n)
	answers := func(path string, want int) {
		t.Helper()
		url := "http://" + netip.AddrPortFrom(n.Addr(false), 10256).String() + path
		w.until(fmt.Sprintf("%s is answered with %d", url, want), func() error {
			status, body, err := proxies.Get(t.Context(), &w.Outside.Machine, url)
			if err == nil && status != want {
				err = fmt.Errorf("status %d: %s", status, body)
			}
			select {
			case <-p.Done():
				return errors.Join(err, p.Explain(errors.New("has ended")))
			default:
				return err
			}
		})
	}
	answers("/healthz", http.StatusOK)
	answers("/livez", http.StatusOK)
	w.check(n.Taint(t.Context(), corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}))
	defer func() {
		ctx, cancel := ending()
		defer cancel()
		w.check(n.Taint(ctx))
	}()
	answers("/healthz", http.StatusServiceUnavailable)
	answers("/livez", http.StatusOK)
}
