// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
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

// TestAPIServerHangs stops an API server from answering while changes queue up.
func TestAPIServerHangs(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	s := newSwapped(e)
	s.use()

	e.check(e.Plane.API().Signal(syscall.SIGSTOP))
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			e.check(e.Plane.API().Signal(syscall.SIGCONT))
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
		e.check(<-changes)
	}
	fresh := e.pod(2, "web")
	s.run.unused(leaving)
	e.everywhere(s.svc, s.pods[1], fresh)
	s.run.more(5)
}

// TestAPIServerSlow lets the API server run only now and then during a rolling update, so that
// watches are late and changes arrive in bursts.
func TestAPIServerSlow(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	old := []*runningPod{e.pod(0, "web"), e.pod(1, "web")}
	svc := e.service("web", nodePorts)
	e.everywhere(svc, old...)
	e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[2], false), old...)
	run := e.everyWay(svc)
	end, ended := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for stutter := true; stutter && err == nil; {
			err = e.Plane.API().Signal(syscall.SIGSTOP)
			time.Sleep(300 * time.Millisecond)
			err = errors.Join(err, e.Plane.API().Signal(syscall.SIGCONT))
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
		e.check(<-ended)
	}()
	var fresh []*runningPod
	for i, leaving := range old {
		fresh = append(fresh, e.replace(run, svc, i, leaving))
	}
	e.everywhere(svc, fresh...)
	run.fine("at the end")
}

// TestAPIServerGone ends the API server while connections are made, and starts it again
// later. One node's proxy starts anew in the meantime; another's network is down for
// longer, so that it comes back to a history that etcd has compacted (410 Gone), in which
// a Service was deleted; and the third one's token is no longer good.
//
// The API server is of the newest and of the oldest release that Slipstream supports. The
// proxies ask for streamed lists (WatchList, KEP-3157) at their start. If the server refuses,
// they list.
func TestAPIServerGone(t *testing.T) {
	for _, c := range []struct {
		name    string
		release upstream.Release
		streams bool
	}{
		{"newest release", upstream.Current, true},
		{"oldest release", upstream.Oldest, true},
		{"oldest release without WatchList", upstream.Oldest, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			if c.release == upstream.Current {
				newEnv(t).apiServerGone(c.streams)
				return
			}
			newEnvIn(t, startCluster(t, upstream.ControlPlaneOptions{
				Release: c.release, APIFlags: []string{fmt.Sprintf("--feature-gates=WatchList=%t", c.streams)},
			})).apiServerGone(c.streams)
		})
	}
}

func (e *env) apiServerGone(streams bool) {
	before, err := e.requests()
	e.check(err)
	running := e.startAll()
	s := newSwapped(e)
	s.use()
	e.listed(len(before), streams)
	restarted, behind, refused := e.Nodes[0], e.Nodes[1], e.Nodes[2]

	cut := false
	mend := func() {
		if !cut {
			return
		}
		cut = false
		ctx, cancel := ending()
		defer cancel()
		e.check(reconnect(ctx, behind))
	}
	defer mend()
	passing := e.pod(1, "passing")
	gone, err := e.newService(e.Context(), e.name("gone"), "passing", nil)
	e.check(err)
	e.everywhere(gone, passing)
	e.check(disconnect(e.Context(), behind, e.Plane.Host.Addr(false)))
	cut = true
	// Before the server ends: what it has sent by then is still delivered.
	old := e.revision()
	e.check(e.access[refused.Name()].Revoke(e.Context()))
	_, err = e.Plane.RequestEtcd(e.Context(), "/v3/kv/compaction", fmt.Sprintf(`{"revision": %q, "physical": true}`, e.revision()))
	e.check(err)

	down := true
	start := func() {
		if down {
			down = false
			e.check(e.Plane.StartAPI(e.Context()))
		}
	}
	defer start()
	e.check(e.Plane.API().Close())
	e.stop(running[0])
	e.start(proxyKind(e.T), restarted)
	time.Sleep(downFor)
	s.run.more(20)
	s.run.fine("without an API server")
	start()
	e.isGone(old)

	e.check(e.deleteService(e.Context(), gone.Name))
	s.pods = append(s.pods, e.pod(2, "web"))
	e.knows(restarted, s.svc, s.pods...)
	for _, n := range []*site.Node{behind, refused} {
		e.notYet(n, s.svc, s.pods[2])
	}
	mend()
	e.knows(behind, s.svc, s.pods...)
	e.silent(&behind.Machine, clusterIP(gone, false))
	e.check(e.access[refused.Name()].Renew(e.Context()))
	e.knows(refused, s.svc, s.pods...)
	s.run.more(20)
}

// TestRestoredBackup restores a backup of etcd: the proxy has to list again, and the objects
// have older versions than those that it knows.
func TestRestoredBackup(t *testing.T) {
	e := newEnv(t)
	n := e.Nodes[0]
	e.start(proxyKind(t), n)
	web, db := e.pod(0, "web"), e.pod(1, "db")
	changed, deleted := e.service("web", nil), e.service("web", nil)
	answers := func(svc *corev1.Service, pod *runningPod) {
		t.Helper()
		e.reaches(&n.Machine, lab.TCP, clusterIP(svc, false), pod)
	}
	answers(changed, web)
	answers(deleted, web)
	backup := t.TempDir()
	e.check(e.backUp(backup))
	e.check(e.Plane.StartAPI(t.Context()))

	e.check(e.deleteService(t.Context(), deleted.Name))
	e.silent(&n.Machine, clusterIP(deleted, false))
	added, err := e.newService(t.Context(), e.name("db"), "db", nil)
	e.check(err)
	answers(added, db)
	_, err = e.patchService(t.Context(), changed.Name, map[string]any{"spec": map[string]any{"selector": map[string]any{"app": "db"}}})
	e.check(err)
	answers(changed, db)

	e.check(e.restore(backup))
	e.check(e.Plane.StartAPI(t.Context()))
	answers(changed, web)
	answers(deleted, web)
	e.silent(&n.Machine, clusterIP(added, false))
}

// backUp ends the API server and copies etcd's content into a directory.
func (e *env) backUp(dir string) error {
	if err := errors.Join(e.Plane.API().Close(), e.Plane.Etcd().Close()); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(dir, os.DirFS(e.Plane.EtcdData())), e.Plane.StartEtcd(e.Context()))
}

// restore ends the API server and replaces etcd's content by a backup. The next revision is
// later than the one before, as after "etcdutl snapshot restore --bump-revision".
func (e *env) restore(dir string) error {
	const put = `{"key": "c2xpcHN0cmVhbQ=="}`
	before, err := e.Plane.RequestEtcd(e.Context(), "/v3/kv/put", put)
	if err := errors.Join(err, e.Plane.API().Close(), e.Plane.Etcd().Close(), os.RemoveAll(e.Plane.EtcdData())); err != nil {
		return err
	}
	if err := errors.Join(os.CopyFS(e.Plane.EtcdData(), os.DirFS(dir)), e.Plane.StartEtcd(e.Context())); err != nil {
		return err
	}
	for now := int64(0); now <= before && err == nil; {
		now, err = e.Plane.RequestEtcd(e.Context(), "/v3/kv/put", put)
	}
	return err
}

// listed checks that proxies have listed all kinds in streams, or without; before is the number
// of requests that are not considered.
func (e *env) listed(before int, streams bool) {
	e.Helper()
	all, err := e.requests()
	e.check(err)
	count := map[string]int{}
	for _, r := range all[before:] {
		if r.Query.Get("sendInitialEvents") == "true" {
			r.Verb = "stream"
		}
		count[fmt.Sprintf("%s %s: %d", r.Verb, r.Resource, r.Code)]++
	}
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		streamed, refused, listed := count["stream "+resource+": 200"], count["stream "+resource+": 422"], count["list "+resource+": 200"]
		ok := streamed == 0 && refused >= len(e.Nodes) && listed >= len(e.Nodes)
		if streams {
			ok = streamed >= len(e.Nodes) && refused == 0 && listed == 0
		}
		if !ok {
			e.Errorf("%s: %d streamed lists, %d refused, %d lists; requests %v", resource, streamed, refused, listed, count)
		}
	}
}

// knows waits until a Service is answered by these pods on a node.
func (e *env) knows(n *site.Node, svc *corev1.Service, pods ...*runningPod) {
	e.Helper()
	for _, ipv6 := range families {
		e.reaches(&n.Machine, lab.TCP, clusterIP(svc, ipv6), pods...)
	}
}

// notYet checks that a pod is not used from a node.
func (e *env) notYet(n *site.Node, svc *corev1.Service, pod *runningPod) {
	e.Helper()
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		got, err := reached(&n.Machine, lab.TCP, clusterIP(svc, false), 10)
		e.check(err)
		if got[pod.Name()] > 0 {
			e.Fatalf("%s knows of %s, which it cannot", n.Name(), pod.Name())
		}
	}
}

// revision is the cluster's resourceVersion.
func (e *env) revision() string {
	e.Helper()
	list, err := e.Plane.Client.CoreV1().Services(site.Namespace).List(e.Context(), metav1.ListOptions{Limit: 1})
	e.check(err)
	return list.ResourceVersion
}

// isGone checks that the API server refuses to watch from a revision on.
func (e *env) isGone(revision string) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), *patience)
	defer cancel()
	watcher, err := e.Plane.Client.DiscoveryV1().EndpointSlices("").Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
	if err == nil {
		defer watcher.Stop()
		event, ok := <-watcher.ResultChan()
		if !ok {
			e.Fatal("the watch ended without an event")
		}
		if status, is := event.Object.(*metav1.Status); event.Type == watch.Error && is && status.Code == http.StatusGone {
			return
		}
		err = fmt.Errorf("it says %v", event)
	}
	e.Fatalf("a watch from the old revision on is not Gone: %v", err)
}

// TestHealth checks that a node that the cluster autoscaler is about to delete is unhealthy for
// load balancers (/healthz) but alive (/livez).
func TestHealth(t *testing.T) {
	e := newEnv(t)
	n := e.Nodes[0]
	p := e.start(proxyKind(t), n)
	answers := func(path string, want int) {
		t.Helper()
		url := "http://" + netip.AddrPortFrom(n.Addr(false), 10256).String() + path
		e.until(fmt.Sprintf("%s is answered with %d", url, want), func() error {
			status, body, err := e.Outside.Get(t.Context(), url)
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
	e.check(e.taint(t.Context(), n, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}))
	defer func() {
		ctx, cancel := ending()
		defer cancel()
		e.check(e.taint(ctx, n))
	}()
	answers("/healthz", http.StatusServiceUnavailable)
	answers("/livez", http.StatusOK)
}
