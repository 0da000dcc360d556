// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	fleetStart   = "fleet_start"
	fleetChange  = "fleet_change"
	fleetLast    = "fleet_last"
	fleetChurn   = "fleet_churn"
	fleetCPU     = "fleet_cpu"
	fleetRest    = "fleet_rest"
	fleetMemory  = "fleet_memory"
	serverCPU    = "server_cpu"
	serverRest   = "server_rest"
	serverMemory = "server_memory"
	serverSent   = "server_sent"
)

func fleetSeries(o *options) (all []bench.Series) {
	add := func(name, text string, u bench.Unit, show ...bench.Statistic) {
		all = append(all, bench.Series{Name: name, Text: text, Unit: u, Better: bench.Less, Show: show})
	}
	add(fleetStart, "all are started and have programmed their nodes after", bench.Nanoseconds)
	add(fleetChange, "an endpoint replaced, each node", bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	add(fleetLast, "  the last node", bench.Nanoseconds, bench.P50, bench.Highest)
	add(fleetChurn, fmt.Sprintf("the same, %d changes a second", o.Churn), bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	add(fleetCPU, "processor time of a change, each proxy", bench.Nanoseconds)
	add(fleetRest, "  at rest, in a second", bench.Nanoseconds)
	add(fleetMemory, "memory (RSS), each proxy", bench.Bytes, bench.P50, bench.Highest)
	add(serverCPU, "API server: processor time of a change", bench.Nanoseconds)
	add(serverRest, "  at rest, in a second", bench.Nanoseconds)
	add(serverMemory, "  memory (RSS)", bench.Bytes)
	add(serverSent, "  sent for a change", bench.Bytes)
	return all
}

// fleet is many proxies of one kind on one API server, each on a node of its own.
type fleet struct {
	*environment
	subject
	nodes   []*site.Node
	proxies []*proxies.Proxy
	samples bench.Samples
}

// measureFleet adds to a result what fleets need from the trigger time of a change, which is in the
// EndpointSlice's annotation, until each node has programmed it. The kernel's notification about
// the transaction tells when, so that no probes compete with the proxies. All share this machine's
// processors, so a fleet's latencies are mostly the processor time of all its proxies together.
//
// The fleets run one after the other, on the same nodes. One change is made after the other, then
// changes at a constant rate.
func measureFleet(ctx context.Context, o *options, r *bench.Result, subjects []subject) (err error) {
	r.Title = fmt.Sprintf("%d proxies on one kube-apiserver, %s Services x %d endpoints", o.Proxies, bench.Thousands(o.most()), o.Endpoints)
	for _, k := range subjects {
		if k.Mode() != "nftables" {
			return fmt.Errorf("--subjects: %s: only nftables modes, as the kernel tells about changes of their rules", k.Kind)
		}
	}
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
		f := &fleet{environment: e, subject: subjects[i], nodes: e.nodes, samples: samples}
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
	f.samples.Add(fleetStart, float64(time.Since(begin)))
	f.log("%s: %d proxies have started after %v", f.Kind, len(f.proxies), time.Since(begin).Round(time.Millisecond))
	bench.Quiet(ctx)
	atRest, err := f.use(ctx, func() error { return bench.Sleep(ctx, 10*time.Second) })
	if err != nil {
		return err
	}
	f.samples.Add(fleetRest, atRest.proxies/float64(len(f.proxies)))
	f.samples.Add(serverRest, atRest.server)
	watch, err := f.watch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watch.close()) }()
	changes := 0
	begin = time.Now()
	used, err := f.use(ctx, func() error {
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
	took := used.took.Seconds()
	f.samples.Add(fleetCPU, max(used.proxies*took-atRest.proxies*took, 0)/float64(changes*len(f.proxies)))
	f.samples.Add(serverCPU, max(used.server*took-atRest.server*took, 0)/float64(changes))
	f.samples.Add(serverSent, max(used.sent*took-atRest.sent*took, 0)/float64(changes))
	f.log("%s: %d changes", f.Kind, changes)
	if err := f.churn(ctx, watch); err != nil {
		return fmt.Errorf("churn: %w", err)
	}
	for _, p := range f.proxies {
		memory, err := bench.Memory(p.PID())
		if err != nil {
			return p.Explain(err)
		}
		f.samples.Add(fleetMemory, float64(memory.VmRSS))
	}
	memory, err := bench.Memory(f.site.Plane.API().PID())
	f.samples.Add(serverMemory, float64(memory.VmRSS))
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
	latencies, err := w.all(ctx, pod, began, f.Timeout)
	f.samples.Add(fleetChange, latencies...)
	if err == nil {
		f.samples.Add(fleetLast, slices.Max(latencies))
	}
	return err
}

// churn replaces endpoints of other Services at a constant rate, and waits for all of them in the end.
func (f *fleet) churn(ctx context.Context, w *fleetWatch) error {
	pods := make([]netip.Addr, int(f.ChurnTime.Seconds()*float64(f.Churn)))
	at := make([]time.Time, len(pods))
	begin := time.Now()
	for n := range pods {
		if err := bench.Sleep(ctx, time.Until(begin.Add(time.Duration(n)*time.Second/time.Duration(f.Churn)))); err != nil {
			return err
		}
		service := f.Others[n%len(f.Others)]
		pods[n] = f.replaceFirst(service)
		at[n] = w.await(pods[n])
		if err := f.writeFirst(ctx, service); err != nil {
			return err
		}
	}
	for n, pod := range pods {
		latencies, err := w.all(ctx, pod, at[n], f.Timeout)
		f.samples.Add(fleetChurn, latencies...)
		if err != nil {
			return err
		}
	}
	return nil
}

// usage is in nanoseconds of processor time, or bytes, for each second.
type usage struct {
	proxies, server, sent float64
	took                  time.Duration
}

// use measures what all proxies and the API server use while do runs.
func (f *fleet) use(ctx context.Context, do func() error) (u usage, err error) {
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
		if err == nil {
			u.sent = float64(l.Attrs().Statistics.TxBytes)
		}
		return u, err
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
	u.proxies, u.server, u.sent = (after.proxies-before.proxies)/s, (after.server-before.server)/s, (after.sent-before.sent)/s
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
	waiting map[netip.Addr]map[int]time.Time // of pods, by node: when it was programmed
	changed chan struct{}                    // a node has programmed a pod
}

// watch listens to the kernel's notifications about nftables on all nodes.
func (f *fleet) watch() (_ *fleetWatch, err error) {
	w := &fleetWatch{waiting: map[netip.Addr]map[int]time.Time{}, changed: make(chan struct{}, 1)}
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
// element, or of a rule, in network byte order.
func (w *fleetWatch) read(node int, s *netlink.Conn) {
	for {
		messages, err := s.Receive()
		now := time.Now()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		w.mu.Lock()
		for pod, nodes := range w.waiting {
			if _, known := nodes[node]; known {
				continue
			}
			address := pod.AsSlice()
			if slices.ContainsFunc(messages, func(m netlink.Message) bool { return bytes.Contains(m.Data, address) }) {
				nodes[node] = now
				select {
				case w.changed <- struct{}{}:
				default:
				}
			}
		}
		w.mu.Unlock()
	}
}

// await begins to wait for a pod, and returns the time.
func (w *fleetWatch) await(pod netip.Addr) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[pod] = map[int]time.Time{}
	return time.Now()
}

// all waits until all nodes have programmed a pod, and returns how long each took.
func (w *fleetWatch) all(ctx context.Context, pod netip.Addr, began time.Time, timeout time.Duration) (latencies []float64, err error) {
	expired := time.After(timeout)
	for {
		w.mu.Lock()
		have := len(w.waiting[pod])
		if have == len(w.sockets) {
			for _, at := range w.waiting[pod] {
				latencies = append(latencies, float64(at.Sub(began)))
			}
			delete(w.waiting, pod)
		}
		w.mu.Unlock()
		if latencies != nil {
			return latencies, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-expired:
			return nil, fmt.Errorf("%w: %d of %d nodes have pod %v", errTooLong, have, len(w.sockets), pod)
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
