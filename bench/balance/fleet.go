// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// web is where the Service with the slow endpoint is, whose endpoints have the port backend. Those with a failing
// endpoint follow: the next addresses, and ports of the same endpoints.
var web = netip.MustParseAddrPort("10.96.0.1:80")

const backend = 8080

// failures are the ways in which endpoints fail, but for the last sooner than others answer. answer is nil for one that
// answers as the others do until its pod has the rules broken.
var failures = []struct {
	series bench.Series
	answer func(fd int)
}{
	{bench.Quantity("refused_share", "failed requests, one endpoint refuses", bench.Percent, bench.Less), nil},
	{bench.Quantity("error_share", "failed requests, one endpoint answers an error at once", bench.Percent, bench.Less), func(fd int) {
		_, _ = unix.Write(fd, []byte{failed})
	}},
	{bench.Quantity("reset_share", "failed requests, one endpoint resets", bench.Percent, bench.Less), func(fd int) {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}},
	{bench.Quantity("silent_share", "failed requests, one endpoint is silent", bench.Percent, bench.Less), nil},
}

// broken are the rules of a pod with a closed port and a silent one: those of the first and the last failure.
const broken = "table ip broken { chain c { type filter hook input priority 0; tcp dport 8081 reject with tcp reset; tcp dport 8084 drop; }; }"

// Requests to Services with a failing endpoint fail if they take longer than answered. They are measured from sinceBroken
// after the endpoint has failed.
const answered, sinceBroken = time.Second, 3 * time.Second

// failed is the answer of the failing endpoint, which is number 0.
const failed = 0

// at returns where a Service is, and the port of its endpoints: -1 is web, others are of failures.
func at(failure int) (netip.AddrPort, uint16) {
	ip := web.Addr().As4()
	ip[3] += byte(1 + failure)
	return netip.AddrPortFrom(netip.AddrFrom4(ip), web.Port()), uint16(backend + 1 + failure)
}

// fleet are nodes with a proxy and a client on each, and servers.
type fleet struct {
	*Options
	*cluster.Nodes
	servers []*lab.Pod
	proxies []*lab.Program
	stop    []func() // the servers

	mu        sync.Mutex
	latencies []float64 // of requests that are measured, in nanoseconds
	slow      int       // number of those that the slow endpoint answered
	used      float64   // processors that a proxy used on average

	requests, failed []int // by failure
}

// turn makes a fleet, measures it and removes it.
func (o *Options) turn(ctx context.Context, scheduler string, seed uint64) (f *fleet, err error) {
	f = &fleet{Options: o, requests: make([]int, len(failures)), failed: make([]int, len(failures))}
	if f.Nodes, err = cluster.NewNodes(o.Nodes, o.Slipstream); err != nil {
		return nil, err
	}
	defer func() {
		for _, stop := range f.stop {
			stop()
		}
		err = errors.Join(err, f.Close())
	}()
	for i := range f.Endpoints {
		if err := f.serve(i); err != nil {
			return nil, err
		}
	}
	if err := f.Write(f.services(scheduler == detection)); err != nil {
		return nil, err
	}
	args := []string{"--scheduler", scheduler}
	switch scheduler {
	case ipvsLC:
		args = []string{"--proxy-mode", "ipvs", "--ipvs-scheduler", "lc"}
	case detection:
		args = nil
	}
	if f.proxies, err = f.Start(ctx, args...); err != nil {
		return nil, err
	}
	if err := f.measureSlow(ctx, seed); err != nil {
		return f, err
	}
	return f, f.measureFailing(ctx, seed)
}

// serve starts a server: number 0 is the slow one, and the one that fails. It answers with its number.
func (f *fleet) serve(i int) error {
	pod, err := f.Pod(1+i%f.Options.Nodes, fmt.Sprintf("server-%d", i), 10+i)
	if err != nil {
		return err
	}
	f.servers = append(f.servers, pod)
	for failure := -1; failure < len(failures); failure++ {
		takes := f.Service
		if i == 0 && failure < 0 {
			takes *= time.Duration(f.Slow)
		}
		answer := func(fd int) {
			time.Sleep(takes)
			_, _ = unix.Write(fd, []byte{byte(i)})
		}
		if i == 0 && failure >= 0 && failures[failure].answer != nil {
			answer = failures[failure].answer
		}
		_, port := at(failure)
		stop, err := bench.Serve(pod.Namespace, netip.AddrPortFrom(netip.IPv4Unspecified(), port), answer)
		if err != nil {
			return err
		}
		f.stop = append(f.stop, stop)
	}
	return nil
}

// services are the Services that are measured, perhaps with outlier detection, and the idle ones.
func (f *fleet) services(detected bool) iter.Seq[source.Event] {
	return func(yield func(source.Event) bool) {
		servers := collect.From(f.servers, func(p *lab.Pod) netip.Addr { return p.Addr(false) })
		for failure := -1; failure < len(failures); failure++ {
			to, port := at(failure)
			svc, slice := cluster.One(fmt.Sprint("web-", port), to.Addr(), servers, corev1.ServicePort{Port: int32(to.Port()), TargetPort: intstr.FromInt32(int32(port)), Protocol: corev1.ProtocolTCP})
			if detected {
				svc.Annotations = map[string]string{desired.AnnotationOutliers: desired.EjectOutliers}
			}
			if !yield(source.Event{Object: svc}) || !yield(source.Event{Object: slice}) {
				return
			}
		}
		cluster.New(cluster.Config{Services: f.Idle, Endpoints: 10}).Events()(yield)
	}
}

// times says when a part of a turn of so many seconds is measured.
func times(seconds int) (from, to time.Time, length time.Duration) {
	length = time.Duration(seconds) * time.Second
	from = time.Now().Add(min(length, 10*time.Second))
	return from, from.Add(length), length
}

// measureSlow measures the Service with the slow endpoint.
func (f *fleet) measureSlow(ctx context.Context, seed uint64) error {
	from, to, length := times(f.Seconds)
	var g errgroup.Group
	g.Go(func() error {
		return f.clients(ctx, seed, web, to, cluster.Patience, func(due time.Time, number byte, err error) error {
			if due.Before(from) || err != nil {
				return err
			}
			took := time.Since(due)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.latencies = append(f.latencies, float64(took))
			if number == 0 {
				f.slow++
			}
			return nil
		})
	})
	g.Go(func() error {
		err := bench.Sleep(ctx, time.Until(from))
		before, err1 := bench.UsedBy(f.proxies...)
		err2 := bench.Sleep(ctx, time.Until(to))
		after, err3 := bench.UsedBy(f.proxies...)
		f.used = (after - before).Seconds() / length.Seconds() / float64(len(f.proxies))
		return errors.Join(err, err1, err2, err3)
	})
	return g.Wait()
}

// measureFailing measures all Services with a failing endpoint at once.
func (f *fleet) measureFailing(ctx context.Context, seed uint64) error {
	if f.Failing == 0 {
		return nil
	}
	from, to, _ := times(f.Failing)
	var g errgroup.Group
	g.Go(func() error {
		err := bench.Sleep(ctx, time.Until(from.Add(-sinceBroken)))
		_, refused := f.servers[0].Run(ctx, "nft", broken)
		return errors.Join(err, refused)
	})
	for i := range failures {
		service, _ := at(i)
		g.Go(func() error {
			return f.clients(ctx, seed+uint64(i+1)<<32, service, to, answered, func(due time.Time, number byte, err error) error {
				f.mu.Lock()
				defer f.mu.Unlock()
				if !due.Before(from) {
					f.requests[i]++
					if err != nil || number == failed {
						f.failed[i]++
					}
				}
				return ctx.Err()
			})
		})
	}
	return g.Wait()
}

// told is told the number of the server that answered a request, or why none did.
type told func(due time.Time, number byte, err error) error

// clients makes requests from all clients, also before the time that is measured, and waits for all answers.
func (f *fleet) clients(ctx context.Context, seed uint64, service netip.AddrPort, to time.Time, patience time.Duration, tell told) error {
	var g errgroup.Group
	for i, c := range f.Clients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		g.Go(func() error { return f.client(ctx, c, random, service, to, patience, tell) })
	}
	return g.Wait()
}

// client makes a client's requests, each in a thread of its own, in the client's namespace, where net opens sockets. A
// request counts from the time that it was due, also if it was made later.
func (f *fleet) client(ctx context.Context, from *lab.Pod, random *rand.Rand, service netip.AddrPort, to time.Time, patience time.Duration, tell told) error {
	mean := float64(time.Second) * float64(f.Options.Nodes) / float64(f.Rate)
	var answers errgroup.Group
	for due := time.Now(); ; {
		if due = due.Add(time.Duration(random.ExpFloat64() * mean)); due.After(to) {
			return answers.Wait()
		}
		if err := bench.Sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		answers.Go(func() error {
			var number [1]byte
			err := from.Do(func() error {
				conn, err := net.DialTimeout("tcp4", service.String(), patience)
				if err != nil {
					return err
				}
				defer conn.Close()
				_ = conn.SetDeadline(due.Add(patience))
				_, err = io.ReadFull(conn, number[:])
				return err
			})
			return tell(due, number[0], err)
		})
	}
}
