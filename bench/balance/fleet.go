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
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// web is where the Service is.
var web = netip.MustParseAddrPort("10.96.0.1:80")

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
}

// turn makes a fleet, measures it and removes it.
func (o *Options) turn(ctx context.Context, scheduler string, seed uint64) (f *fleet, err error) {
	f = &fleet{Options: o}
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
	if err := f.Write(f.services()); err != nil {
		return nil, err
	}
	args := []string{"--scheduler", scheduler}
	if scheduler == ipvsLC {
		args = []string{"--proxy-mode", "ipvs", "--ipvs-scheduler", "lc"}
	}
	if f.proxies, err = f.Start(ctx, args...); err != nil {
		return nil, err
	}
	return f, f.measure(ctx, seed)
}

// serve starts a server: number 0 is the slow one. It answers with its number.
func (f *fleet) serve(i int) error {
	pod, err := f.Pod(1+i%f.Options.Nodes, fmt.Sprintf("server-%d", i), 10+i)
	if err != nil {
		return err
	}
	f.servers = append(f.servers, pod)
	takes := f.Service
	if i == 0 {
		takes *= time.Duration(f.Slow)
	}
	stop, err := bench.Serve(pod.Namespace, netip.MustParseAddrPort("0.0.0.0:8080"), func(fd int) {
		time.Sleep(takes)
		_, _ = unix.Write(fd, []byte{byte(i)})
	})
	if err == nil {
		f.stop = append(f.stop, stop)
	}
	return err
}

// services are the Service and the idle ones.
func (f *fleet) services() iter.Seq[source.Event] {
	return func(yield func(source.Event) bool) {
		var servers []netip.Addr
		for _, s := range f.servers {
			servers = append(servers, s.Addr(false))
		}
		svc, slice := cluster.One("web", web.Addr(), servers, corev1.ServicePort{Port: int32(web.Port()), TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP})
		idle := cluster.New(cluster.Config{Families: []cluster.Family{cluster.IPv4}, Services: f.Idle, Endpoints: 10})
		if yield(source.Event{Object: svc}) && yield(source.Event{Object: slice}) {
			idle.Events()(yield)
		}
	}
}

// measure makes requests from all clients, some of them before the time that is measured, and
// waits for all answers.
func (f *fleet) measure(ctx context.Context, seed uint64) error {
	length := time.Duration(f.Seconds) * time.Second
	from := time.Now().Add(min(length, 10*time.Second))
	to := from.Add(length)
	var g errgroup.Group
	for i, c := range f.Clients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		g.Go(func() error { return c.Do(func() error { return f.requests(ctx, random, from, to) }) })
	}
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

// requests makes a client's requests. The calling thread is in the client's namespace, where net
// opens sockets. A request counts from the time that it was due, also if it was made later.
func (f *fleet) requests(ctx context.Context, random *rand.Rand, from, to time.Time) error {
	mean := float64(time.Second) * float64(f.Options.Nodes) / float64(f.Rate)
	var answers errgroup.Group
	for due := time.Now(); ; {
		if due = due.Add(time.Duration(random.ExpFloat64() * mean)); due.After(to) {
			return answers.Wait()
		}
		if err := bench.Sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp4", web.String(), cluster.Patience)
		if err != nil {
			return errors.Join(err, answers.Wait())
		}
		answers.Go(func() error {
			defer conn.Close()
			var number [1]byte
			err := conn.SetDeadline(time.Now().Add(cluster.Patience))
			if err == nil {
				_, err = io.ReadFull(conn, number[:])
			}
			if due.Before(from) || err != nil {
				return err
			}
			took := time.Since(due)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.latencies = append(f.latencies, float64(took))
			if number[0] == 0 {
				f.slow++
			}
			return nil
		})
	}
}
