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
	"os"
	"path/filepath"
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

// patience bounds each step and each request.
const patience = 2 * time.Minute

// web is where the Service is.
var web = netip.MustParseAddrPort("10.96.0.1:80")

// fleet are nodes with a proxy and a client on each, and servers.
type fleet struct {
	*Options
	lab     *lab.Lab
	clients []*lab.Pod
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
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f = &fleet{Options: o}
	if f.lab, err = lab.New(); err != nil {
		return nil, err
	}
	defer func() {
		for _, stop := range f.stop {
			stop()
		}
		err = errors.Join(err, f.lab.Close())
	}()
	if err := f.build(); err != nil {
		return nil, err
	}
	for i := range f.servers {
		if err := f.serve(i); err != nil {
			return nil, err
		}
	}
	if err := f.start(ctx, dir, scheduler); err != nil {
		return nil, err
	}
	return f, f.measure(ctx, seed)
}

func (f *fleet) build() error {
	var nodes []*lab.Node
	for i := range f.Nodes {
		n, err := f.lab.Node(fmt.Sprintf("node-%d", i+1), lab.NodeOptions{
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.100.1%d/24", i+1))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+1))},
		})
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
		client, err := n.Pod(fmt.Sprintf("client-%d", i+1), netip.MustParseAddr(fmt.Sprintf("10.244.%d.2", i+1)))
		if err != nil {
			return err
		}
		f.clients = append(f.clients, client)
	}
	for i := range f.Endpoints {
		on := i % f.Nodes
		s, err := nodes[on].Pod(fmt.Sprintf("server-%d", i), netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", on+1, 10+i)))
		if err != nil {
			return err
		}
		f.servers = append(f.servers, s)
	}
	return nil
}

// serve starts a server: number 0 is the slow one. It answers with its number.
func (f *fleet) serve(i int) error {
	takes := f.Service
	if i == 0 {
		takes *= time.Duration(f.Slow)
	}
	stop, err := bench.Serve(f.servers[i].Namespace, netip.MustParseAddrPort("0.0.0.0:8080"), func(fd int) {
		time.Sleep(takes)
		_, _ = unix.Write(fd, []byte{byte(i)})
	})
	if err == nil {
		f.stop = append(f.stop, stop)
	}
	return err
}

// start starts a proxy on each node, and waits until all serve.
func (f *fleet) start(ctx context.Context, dir, scheduler string) error {
	manifests := filepath.Join(dir, "manifests")
	if err := cluster.WriteManifests(manifests, f.services()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, c := range f.clients {
		args := []string{"--cluster-cidr", "10.244.0.0/16", "--scheduler", scheduler}
		if scheduler == ipvsLC {
			args = append(args[:2], "--proxy-mode", "ipvs", "--ipvs-scheduler", "lc")
		}
		p, err := c.Node().StartSlipstream(ctx, dir, f.Slipstream, manifests, args...)
		if err != nil {
			return err
		}
		f.proxies = append(f.proxies, p)
	}
	return nil
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
	for i, c := range f.clients {
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
	mean := float64(time.Second) * float64(f.Nodes) / float64(f.Rate)
	var answers errgroup.Group
	for due := time.Now(); ; {
		if due = due.Add(time.Duration(random.ExpFloat64() * mean)); due.After(to) {
			return answers.Wait()
		}
		if err := bench.Sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp4", web.String(), patience)
		if err != nil {
			return errors.Join(err, answers.Wait())
		}
		answers.Go(func() error {
			defer conn.Close()
			var number [1]byte
			err := conn.SetDeadline(time.Now().Add(patience))
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
