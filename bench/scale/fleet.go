// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

var (
	fleetStart  = cost("fleet_start", "all are started and have programmed their nodes after", bench.Nanoseconds)
	fleetChange = cost("fleet_change", "an endpoint replaced, each node", bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	fleetLast   = cost("fleet_last", "  the last node", bench.Nanoseconds, bench.P50, bench.Highest)
	fleetChurn  = cost("fleet_churn", "", bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	churnLast   = cost("fleet_churn_last", "  the last node", bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	churnCPU    = cost("fleet_churn_cpu", "  processor time of a change, each proxy", bench.Nanoseconds)
	churnSent   = cost("fleet_churn_received", "  received by a node for a change", bench.Bytes)
	serverChurn = cost("server_churn", "  API server: processor time of a change", bench.Nanoseconds)
	churnShare  = cost("fleet_churn_share", "  processor time of proxies and API server, of the machine's", bench.Percent)
	churnRate   = bench.Series{Name: "fleet_churn_rate", Text: "  changes made in a second", Unit: bench.PerSecond, Better: bench.More}

	fleetCPU     = cost("fleet_cpu", "processor time of a change, each proxy", bench.Nanoseconds)
	fleetRest    = cost("fleet_rest", "  at rest, in a second", bench.Nanoseconds)
	fleetMemory  = cost("fleet_memory", "memory (RSS), each proxy", bench.Bytes, bench.P50, bench.Highest)
	serverCPU    = cost("server_cpu", "API server: processor time of a change", bench.Nanoseconds)
	serverRest   = cost("server_rest", "  at rest, in a second", bench.Nanoseconds)
	serverMemory = cost("server_memory", "  memory (RSS)", bench.Bytes)
	serverSent   = cost("server_sent", "  sent for a change", bench.Bytes)
)

func fleetSeries(o *options) []bench.Series {
	churn := fleetChurn
	churn.Text = fmt.Sprintf("the same, %d changes a second", o.Churn)
	if o.Rollout > 0 {
		churn.Text = fmt.Sprintf("from the API server's reply, %d of %d a second rolled beside %d other changes", o.RolloutRate, o.Rollout, o.Churn)
	}
	return []bench.Series{
		fleetStart, fleetChange, fleetLast, churn, churnLast, churnCPU, churnSent, serverChurn, churnShare, churnRate,
		fleetCPU, fleetRest, fleetMemory, serverCPU, serverRest, serverMemory, serverSent,
	}
}

// fleet is many proxies of one kind on one API server, each on a node of its own.
type fleet struct {
	*environment
	subject
	proxies []*proxies.Proxy
	samples bench.Samples
}

// measureFleet adds to a result what fleets need from the trigger time of a change, which is in the
// EndpointSlice's annotation, until each node has programmed it. The kernel's notification about
// the transaction tells when, so that no probes compete with the proxies. All share this machine's
// processors, so a fleet's latencies are mostly the processor time of all its proxies together.
//
// The fleets run one after the other, on the same nodes. One change is made after the other, then
// changes at a constant rate. With --rollout these are mostly of one large Service, and each changes an
// endpoint of another of its slices; their latency begins with the API server's reply.
func measureFleet(ctx context.Context, o *options, r *bench.Result, subjects []subject) (err error) {
	r.Title = fmt.Sprintf("%d proxies on one kube-apiserver, %s Services x %d endpoints", o.Proxies, bench.Thousands(o.most()), o.Endpoints)
	e, err := newEnvironment(ctx, o, o.Proxies)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.fill(ctx, o.most()); err != nil {
		return err
	}
	access, err := e.site.Plane.NewAccess(ctx, o.dir, "fleet")
	if err != nil {
		return err
	}
	for _, n := range e.nodes {
		if err := n.Register(ctx); err != nil {
			return err
		}
	}
	return r.InTurns(ctx, 1, func(_, i int, samples bench.Samples) error {
		f := &fleet{environment: e, subject: subjects[i], samples: samples}
		if err := f.measure(ctx, access); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			o.log("%s: %v", f.Kind, err)
			r.Subjects[i].Failed = err.Error()
		}
		return nil
	}, fleetSeries(o)...)
}

func (f *fleet) measure(ctx context.Context, access *site.Access) (err error) {
	bench.Quiet(ctx)
	defer func() { err = errors.Join(err, f.end(context.WithoutCancel(ctx))) }()
	begin := time.Now()
	for _, n := range f.nodes {
		o := f.proxyOptions(f.subject, access)
		if f.IsSlipstream() {
			o.Flags = append(o.Flags, "--status-socket="+filepath.Join(f.dir, n.Name()+".sock"))
		}
		p, err := proxies.Start(ctx, f.Kind, n.Node, o)
		if err != nil {
			return err
		}
		f.proxies = append(f.proxies, p)
	}
	starting, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	for _, p := range f.proxies {
		err := p.Await(starting, func(ctx context.Context) error {
			_, text, err := p.Node.Get(ctx, "http://127.0.0.1:10249/metrics")
			if err == nil && !hasSynced(text) {
				err = errors.New("the node is not programmed yet")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	f.samples.Add(fleetStart.Name, float64(time.Since(begin)))
	f.log("%s: %d proxies have started after %v", f.Kind, len(f.proxies), time.Since(begin).Round(time.Millisecond))
	bench.Quiet(ctx)
	atRest, err := f.use(func() error { return bench.Sleep(ctx, 10*time.Second) })
	if err != nil {
		return err
	}
	f.samples.Add(fleetRest.Name, atRest.proxies/float64(len(f.proxies)))
	f.samples.Add(serverRest.Name, atRest.server)
	watch, err := f.watch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watch.close()) }()
	changes := 0
	begin = time.Now()
	used, err := f.use(func() error {
		for ; changes < f.Changes && (changes < 3 || time.Since(begin) < f.Budget); changes++ {
			if err := bench.Sleep(ctx, pause); err != nil {
				return err
			}
			if err := f.change(ctx, watch, changes); err != nil {
				return fmt.Errorf("change %d: %w", changes+1, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if changes > 0 {
		cost := used.of(changes, atRest)
		f.samples.Add(fleetCPU.Name, cost.proxies/float64(len(f.proxies)))
		f.samples.Add(serverCPU.Name, cost.server)
		f.samples.Add(serverSent.Name, cost.sent)
	}
	f.log("%s: %d changes", f.Kind, changes)
	changes = int(f.ChurnTime.Seconds() * float64(f.Churn+f.RolloutRate))
	var pods []*awaited
	used, err = f.use(func() (err error) {
		pods, err = f.churn(ctx, watch, changes)
		return err
	})
	for _, p := range pods {
		latencies := p.latencies()
		f.samples.Add(fleetChurn.Name, latencies...)
		f.samples.Add(churnLast.Name, slices.Max(latencies))
	}
	if err != nil {
		return fmt.Errorf("churn: %w", err)
	}
	cost := used.of(changes, atRest)
	f.samples.Add(churnCPU.Name, cost.proxies/float64(len(f.proxies)))
	f.samples.Add(churnSent.Name, cost.received)
	f.samples.Add(serverChurn.Name, cost.server)
	f.samples.Add(churnShare.Name, 100*(used.proxies+used.server)/1e9/float64(runtime.NumCPU()))
	f.samples.Add(churnRate.Name, float64(changes)/used.took.Seconds())
	for _, p := range f.proxies {
		memory, err := bench.Memory(p.PID())
		if err != nil {
			return p.Explain(err)
		}
		f.samples.Add(fleetMemory.Name, float64(memory.VmRSS))
	}
	memory, err := bench.Memory(f.site.Plane.API().PID())
	f.samples.Add(serverMemory.Name, float64(memory.VmRSS))
	return err
}

// hasSynced says whether metrics have the time of a sync, of each family if they distinguish them.
func hasSynced(metrics string) (is bool) {
	for name, value := range metricsOf(metrics) {
		if strings.HasPrefix(name, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") {
			if value == 0 {
				return false
			}
			is = true
		}
	}
	return is
}

// change replaces the endpoint of a Service with a single one, and waits until all nodes have the new one.
func (f *fleet) change(ctx context.Context, w *fleetWatch, n int) error {
	pod := f.replaceFirst(f.Single[n%len(f.Single)])
	began := w.await(pod)
	if err := f.writeFirst(ctx, f.Single[n%len(f.Single)]); err != nil {
		return err
	}
	if err := w.all(ctx, f.Timeout); err != nil {
		return err
	}
	latencies := began.latencies()
	f.samples.Add(fleetChange.Name, latencies...)
	f.samples.Add(fleetLast.Name, slices.Max(latencies))
	return nil
}

// churn makes a number of changes at a constant rate, and returns when all nodes have all of them. Each
// replaces an endpoint: of other Services, and in turn of all slices of the one that is rolled.
func (f *fleet) churn(ctx context.Context, w *fleetWatch, changes int) (pods []*awaited, err error) {
	rate, begin := f.Churn+f.RolloutRate, time.Now()
	var writes errgroup.Group
	writes.SetLimit(requests)
	last := map[string]chan struct{}{} // writes, by the name of the slice: its versions are written in order
	for n := range changes {
		if err := bench.Sleep(ctx, time.Until(begin.Add(time.Duration(n)*time.Second/time.Duration(rate)))); err != nil {
			return nil, errors.Join(err, writes.Wait())
		}
		others := n * f.Churn / rate // so far
		service, slice, at := f.Others[others%len(f.Others)], 0, 0
		if (n+1)*f.Churn/rate == others {
			many := f.Rollout / cluster.SliceSize
			service, slice, at = cluster.RolledService, (n-others)%many, (n-others)/many%cluster.SliceSize
		}
		pod := w.await(cluster.PodIP(f.Replace(service, slice, at)))
		pods = append(pods, pod)
		o := f.Slice(service, slice)
		before, done := last[o.Name], make(chan struct{})
		last[o.Name] = done
		writes.Go(func() error {
			defer close(done)
			if before != nil {
				<-before
			}
			err := f.write(ctx, o)
			if f.Rollout > 0 {
				pod.began = time.Now()
			}
			return err
		})
	}
	if err := writes.Wait(); err != nil {
		return nil, err
	}
	if err := w.all(ctx, f.Timeout); err != nil {
		return nil, err
	}
	return pods, nil
}

// usage is in nanoseconds of processor time, or bytes, for each second.
type usage struct {
	proxies, server, sent float64
	received              float64 // by a node, mean
	took                  time.Duration
}

// of returns what each of a number of changes has used beyond what is used at rest.
func (u usage) of(changes int, rest usage) (each usage) {
	one := func(used, rest float64) float64 { return max(used-rest, 0) * u.took.Seconds() / float64(changes) }
	return usage{one(u.proxies, rest.proxies), one(u.server, rest.server), one(u.sent, rest.sent), one(u.received, rest.received), u.took}
}

// use measures what all proxies and the API server use while do runs.
func (f *fleet) use(do func() error) (u usage, err error) {
	now := func() (u usage, err error) {
		for _, p := range f.proxies {
			used, err := bench.Used(p.PID())
			if err != nil {
				return u, p.Explain(err)
			}
			u.proxies += float64(used)
		}
		used, err := bench.Used(f.site.Plane.API().PID())
		u.server = float64(used)
		if err != nil {
			return u, err
		}
		l, err := f.site.Plane.Host.Netlink().LinkByName("eth0")
		if err != nil {
			return u, err
		}
		u.sent = float64(l.Attrs().Statistics.TxBytes)
		for _, n := range f.nodes {
			if l, err = n.Netlink().LinkByName("eth0"); err != nil {
				return u, err
			}
			u.received += float64(l.Attrs().Statistics.RxBytes) / float64(len(f.nodes))
		}
		return u, nil
	}
	before, err := now()
	if err != nil {
		return u, err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return u, err
	}
	u.took = time.Since(begin)
	after, err := now()
	s := u.took.Seconds()
	u.proxies, u.server = (after.proxies-before.proxies)/s, (after.server-before.server)/s
	u.sent, u.received = (after.sent-before.sent)/s, (after.received-before.received)/s
	return u, err
}

// end ends all proxies and empties their nodes.
func (f *fleet) end(ctx context.Context) error {
	var all errgroup.Group
	for _, p := range f.proxies {
		all.Go(p.Close)
	}
	err := all.Wait()
	for _, n := range f.nodes {
		_, failed := n.Run(ctx, "nft", "flush", "ruleset")
		err = errors.Join(err, failed)
	}
	return err
}

// fleetWatch finds out when nodes have programmed endpoints.
type fleetWatch struct {
	sockets []*netlink.Conn
	done    sync.WaitGroup

	mu      sync.Mutex
	waiting map[[4]byte]*awaited // that some nodes have not programmed yet, by address
	changed chan struct{}        // a node has programmed a pod
}

// awaited is a pod that all nodes are to program.
type awaited struct {
	began time.Time
	at    []time.Time // by node: when it was programmed
	left  int         // nodes that have not
}

// latencies returns how long each node took. A node may have a change before the API server's reply is read.
func (a *awaited) latencies() []float64 {
	return collect.From(a.at, func(at time.Time) float64 { return float64(max(at.Sub(a.began), 0)) })
}

// watch listens to the kernel's notifications about nftables on all nodes.
func (f *fleet) watch() (_ *fleetWatch, err error) {
	w := &fleetWatch{waiting: map[[4]byte]*awaited{}, changed: make(chan struct{}, 1)}
	for i, n := range f.nodes {
		s, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.FD()})
		if err == nil {
			err = errors.Join(s.SetReadBuffer(8<<20), s.JoinGroup(unix.NFNLGRP_NFTABLES))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("notifications of %s: %w", n.Name(), err), w.close())
		}
		w.sockets = append(w.sockets, s)
		w.done.Go(func() { w.read(i, s) })
	}
	return w, nil
}

// read reads the notifications of a node until its socket is closed. An address is in the data of a set's
// element, or of a rule, in network byte order, and aligned to four bytes.
func (w *fleetWatch) read(node int, s *netlink.Conn) {
	for {
		messages, err := s.Receive()
		now := time.Now()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		w.mu.Lock()
		for _, m := range messages {
			for word := range slices.Chunk(m.Data, 4) {
				if len(word) == 4 {
					w.programmed([4]byte(word), node, now)
				}
			}
		}
		w.mu.Unlock()
	}
}

func (w *fleetWatch) programmed(pod [4]byte, node int, now time.Time) {
	a := w.waiting[pod]
	if a == nil || !a.at[node].IsZero() {
		return
	}
	a.at[node] = now
	if a.left--; a.left > 0 {
		return
	}
	delete(w.waiting, pod)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// await begins to wait for a pod.
func (w *fleetWatch) await(pod netip.Addr) *awaited {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &awaited{began: time.Now(), at: make([]time.Time, len(w.sockets)), left: len(w.sockets)}
	w.waiting[pod.As4()] = a
	return a
}

// all waits until all nodes have programmed all pods.
func (w *fleetWatch) all(ctx context.Context, timeout time.Duration) error {
	expired := time.After(timeout)
	for {
		w.mu.Lock()
		missing := len(w.waiting)
		first := ""
		for pod, a := range w.waiting {
			first = fmt.Sprintf("%v, which %d of %d nodes lack", netip.AddrFrom4(pod), a.left, len(w.sockets))
			break
		}
		w.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-expired:
			return fmt.Errorf("%w: %d pods, one of them %s", errTooLong, missing, first)
		case <-w.changed:
		}
	}
}

func (w *fleetWatch) close() (err error) {
	for _, s := range w.sockets {
		err = errors.Join(err, s.Close())
	}
	w.done.Wait()
	return err
}
