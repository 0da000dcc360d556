// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/drain"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

var (
	rollouts    = flag.Int("rollouts", 0, "how often TestRollouts replaces all pods with each proxy and each preStop, and prints a table")
	rolloutRate = flag.Int("rollout-rate", 1000, "connections a second, of all clients of TestRollouts")
)

// preStops are what pods do before they end: they wait for a time, or for 'slipstream drained'.
var preStops = []struct {
	name string
	wait time.Duration
}{
	{"no preStop", 0}, {"sleep 5", 5 * time.Second}, {"sleep 30", 30 * time.Second}, {"drained", -1},
}

// rollout replaces the pods of a Service as a Deployment does: a new one is ready before an old one begins to end.
type rollout struct {
	*env
	running map[string]*proxies.Proxy // by node
	wait    time.Duration             // of preStops
	drained []string                  // flags of 'slipstream drained'

	mu     sync.Mutex
	waited []time.Duration // from a pod's deletion to the end of its preStop
	ending sync.WaitGroup
}

// socketOf is the podSocket of a node's proxy.
func (e *env) socketOf(node string) string { return filepath.Join(e.dir, node+"-pods", "drained.sock") }

// startDraining starts proxies that answer 'slipstream drained'.
func (e *env) startDraining(kind proxies.Kind) map[string]*proxies.Proxy {
	e.Helper()
	running := map[string]*proxies.Proxy{}
	for _, n := range e.Nodes {
		running[n.Name()] = e.start(kind, n, func(o *proxies.Options) {
			if kind.IsSlipstream() {
				o.Flags = append(o.Flags, "--pod-socket", e.socketOf(n.Name()))
			}
		})
	}
	return running
}

// askDrained is 'slipstream drained' in a pod.
func (e *env) askDrained(p *runningPod, args ...string) (r drain.Result) {
	e.Helper()
	out, err := p.Run(e.Context(), slipstreamBinary(e.T), append([]string{"drained", "-o", "json", "--socket", e.socketOf(p.Node().Name())}, args...)...)
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		e.Errorf("slipstream drained in %s: %v: %s", p.Name(), err, out)
	}
	return r
}

// end deletes a pod, which runs its preStop and then stops to listen.
func (r *rollout) end(p *runningPod) {
	r.Helper()
	begun := time.Now()
	r.check(p.Terminate(r.Context()))
	r.ending.Go(func() {
		if r.wait < 0 {
			if result := r.askDrained(p, r.drained...); !result.Quiet {
				r.Logf("%s: %+v", p.Name(), result)
			}
		} else {
			time.Sleep(r.wait)
		}
		r.mu.Lock()
		r.waited = append(r.waited, time.Since(begun))
		r.mu.Unlock()
		p.Drain()
		time.Sleep(time.Second) // for its last answers
		ctx, cancel := ending()
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			r.Error(err)
		}
	})
}

// replaceAll replaces pods, a hundred milliseconds after each other, and waits until they have ended.
func (r *rollout) replaceAll(old []*runningPod) {
	r.Helper()
	for i, p := range old {
		r.pod(i%nodes, p.labels["app"])
		r.end(p)
		time.Sleep(100 * time.Millisecond)
	}
	r.ending.Wait()
}

// roll replaces six pods while a client on each node connects, and returns the clients' connections. While they are replaced, the
// proxy of the last node is stopped for a time.
func (r *rollout) roll(rate int, stopped time.Duration) (all lab.LoadStats) {
	r.Helper()
	app := r.name("web")
	var old []*runningPod
	for i := range 2 * nodes {
		old = append(old, r.pod(i%nodes, app))
	}
	svc := r.service(app, nil)
	r.everywhere(svc, old...)
	const workers = 10
	var loads []*lab.Load
	for i := range r.Nodes {
		l, err := r.client(i).StartLoad(context.Background(), lab.TCP, clusterIP(svc, false), lab.LoadOptions{
			Workers: workers, Pace: time.Second * workers * nodes / time.Duration(rate),
			Connect: []lab.ConnectOption{lab.Timeout(*connectTimeout)},
		})
		r.check(err)
		r.Cleanup(func() { l.Stop() })
		loads = append(loads, l)
	}
	time.Sleep(2 * time.Second)
	if stopped > 0 {
		proxy := r.running[r.Nodes[nodes-1].Name()]
		r.check(proxy.Signal(syscall.SIGSTOP))
		time.AfterFunc(stopped, func() { _ = proxy.Signal(syscall.SIGCONT) })
	}
	r.replaceAll(old)
	time.Sleep(2 * time.Second)
	all.Failures = map[string]int64{}
	for _, l := range loads {
		s := l.Stop()
		all.OK += s.OK
		all.Failed += s.Failed
		for what, n := range s.Failures {
			all.Failures[what] += n
		}
		if all.First == nil {
			all.First = s.First
		}
	}
	return all
}

// TestDrainedRollout: no connection fails while all pods are replaced, each of which waits for 'slipstream drained', also if
// another node's proxy stands still meanwhile.
func TestDrainedRollout(t *testing.T) {
	e := newEnv(t)
	r := &rollout{env: e, running: e.startDraining(proxies.Slipstream), wait: -1, drained: []string{"--max-wait", "1m"}}
	if s := r.roll(300, 6*time.Second); s.Failed > 0 || s.OK == 0 {
		t.Errorf("%v", s)
	}
}

// TestDrainedSilence: a Service gets a connection a minute, and the node that it comes from does not know of a pod's end for
// three seconds. The pod still answers, as silence proves little to it.
func TestDrainedSilence(t *testing.T) {
	e := newEnv(t)
	running := e.startDraining(proxies.Slipstream)
	old := e.pod(0, "web")
	svc := e.service("web", nil)
	e.everywhere(svc, old)
	from, proxy := e.client(2), running[e.Nodes[2].Name()]
	e.check(proxy.Signal(syscall.SIGSTOP))
	fresh := e.pod(1, "web")
	e.check(old.Terminate(t.Context()))
	done := make(chan drain.Result, 1)
	go func() {
		r := e.askDrained(old)
		old.Drain()
		done <- r
	}()
	time.Sleep(2800 * time.Millisecond) // with the 2 s that silence takes, it would have ended
	reply, err := from.Connect(lab.TCP, clusterIP(svc, false), lab.Timeout(*connectTimeout))
	if err != nil || reply.Server != old.Name() {
		t.Errorf("a connection before the node knows: %+v, %v", reply, err)
	}
	e.check(proxy.Signal(syscall.SIGCONT))
	if r := <-done; r.Blind != "" {
		t.Errorf("%+v", r)
	}
	e.everywhere(svc, fresh)
}

// TestRollouts prints a table of what clients see while pods are replaced.
func TestRollouts(t *testing.T) {
	if *rollouts == 0 {
		t.Skip("only with -rollouts, as it measures")
	}
	type result struct {
		failed, all int64
		failures    map[string]int64
		waited      []time.Duration
	}
	var out strings.Builder
	for _, stopped := range []time.Duration{0, 8 * time.Second} {
		for _, kind := range []proxies.Kind{proxies.KubeProxyNFTables, proxies.Slipstream} {
			for _, stop := range preStops {
				if stop.wait < 0 && !kind.IsSlipstream() {
					continue
				}
				sum := result{failures: map[string]int64{}}
				for range *rollouts {
					t.Run(fmt.Sprint(kind, " ", stop.name), func(t *testing.T) {
						e := newEnv(t)
						r := &rollout{env: e, running: e.startDraining(kind), wait: stop.wait}
						s := r.roll(*rolloutRate, stopped)
						sum.failed, sum.all = sum.failed+s.Failed, sum.all+s.OK+s.Failed
						for what, n := range s.Failures {
							sum.failures[what] += n
						}
						sum.waited = append(sum.waited, r.waited...)
					})
				}
				slices.Sort(sum.waited)
				if n := len(sum.waited); n > 0 {
					fmt.Fprintf(&out, "| %v | %s | %s | %d of %d | %.1f s | %.1f s | %v %v\n", stopped, kind, stop.name, sum.failed, sum.all,
						sum.waited[(n-1)/2].Seconds(), sum.waited[n-1].Seconds(), slices.Sorted(maps.Keys(sum.failures)), sum.failures)
				}
			}
		}
	}
	fmt.Printf("| stopped | proxy | preStop | failed | a pod's median wait | longest | how they failed\n%s", out.String())
}

// TestWatching prints what share of a processor a proxy uses while clients make connections to its node's Service, without and
// with outlier detection.
func TestWatching(t *testing.T) {
	if *rollouts == 0 {
		t.Skip("only with -rollouts, as it measures")
	}
	var out strings.Builder
	used := func(pid int) float64 { // in seconds
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, text2, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(text2)
		user, err1 := strconv.ParseFloat(f[11], 64)
		kernel, err2 := strconv.ParseFloat(f[12], 64)
		if err := errors.Join(err, err1, err2); err != nil {
			t.Fatal(err)
		}
		return (user + kernel) / 100 // USER_HZ
	}
	const measured = 20 * time.Second
	for round := range *rollouts {
		for _, detection := range []string{"", desired.EjectOutliers} {
			t.Run(fmt.Sprintf("detection %q", detection), func(t *testing.T) {
				e := newEnv(t)
				p := e.start(proxies.Slipstream, e.Nodes[0])
				var pods []*runningPod
				app := e.name("web")
				for i := range 2 * nodes {
					pods = append(pods, e.pod(i%nodes, app))
				}
				svc := e.service(app, nil)
				_, err := e.patchService(t.Context(), svc.Name, map[string]any{"metadata": map[string]any{"annotations": map[string]string{desired.AnnotationOutliers: detection}}})
				e.check(err)
				client := e.client(0)
				e.reaches(client, lab.TCP, clusterIP(svc, false), pods...)
				const workers = 10
				load, err := client.StartLoad(t.Context(), lab.TCP, clusterIP(svc, false), lab.LoadOptions{
					Workers: workers, Pace: time.Second * workers / time.Duration(*rolloutRate), Connect: []lab.ConnectOption{lab.Timeout(*connectTimeout)},
				})
				e.check(err)
				time.Sleep(5 * time.Second)
				before, made, begun := used(p.PID()), load.Stats().OK, time.Now()
				time.Sleep(measured)
				took := time.Since(begun).Seconds()
				fmt.Fprintf(&out, "| %d | %q | %.0f connections/s | %.2f %% of a processor\n", round, detection, float64(load.Stats().OK-made)/took, 100*(used(p.PID())-before)/took)
				if s := load.Stop(); s.Failed > 0 {
					t.Logf("%v", s)
				}
			})
		}
	}
	fmt.Print(out.String())
}
