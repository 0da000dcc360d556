// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sync/errgroup"
)

// patience bounds each step and each request.
const patience = 2 * time.Minute

var (
	web  = netip.MustParseAddrPort("10.96.0.1:80")
	idle = netip.MustParsePrefix("10.97.0.0/16")
	pods = netip.MustParsePrefix("10.128.0.0/9") // of idle Services
)

// fleet are nodes with a proxy and a client on each, and servers.
type fleet struct {
	*Options
	lab     *lab.Lab
	clients []*lab.Pod
	servers []*lab.Pod
	proxies []*lab.Program
	stop    []io.Closer

	mu        sync.Mutex
	latencies []float64 // of requests that are measured, in nanoseconds
	slow      int       // number of those that the slow endpoint answered
	used      float64   // processors that a proxy used on average
}

// turn makes a fleet, measures it and removes it.
func (o *Options) turn(ctx context.Context, scheduler string, seed uint64) (f *fleet, err error) {
	dir, err := os.MkdirTemp("", "slipstream-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f = &fleet{Options: o}
	if f.lab, err = lab.New(); err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range f.stop {
			s.Close()
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
	listener, err := f.servers[i].Listen("tcp4", ":8080")
	if err != nil {
		return err
	}
	takes := f.Service
	if i == 0 {
		takes *= time.Duration(f.Slow)
	}
	queue := make(chan net.Conn, 1<<16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil { // the listener was closed
				close(queue)
				return
			}
			queue <- conn
		}
	}()
	go func() {
		for conn := range queue {
			time.Sleep(takes)
			_, _ = conn.Write([]byte{byte(i)})
			conn.Close()
		}
	}()
	f.stop = append(f.stop, listener)
	return nil
}

// start starts a proxy on each node, and waits until all serve.
func (f *fleet) start(ctx context.Context, dir, scheduler string) error {
	manifests := filepath.Join(dir, "manifests")
	err := errors.Join(os.Mkdir(manifests, 0o755), os.WriteFile(filepath.Join(manifests, "services.yaml"), f.manifests(), 0o644))
	if err != nil {
		return err
	}
	for _, c := range f.clients {
		args := []string{"run", "--manifests", manifests, "--hostname-override", c.Node().Name(), "--cluster-cidr", "10.244.0.0/16", "--status-socket", filepath.Join(dir, c.Node().Name()+".sock")}
		if scheduler == ipvsLC {
			args = append(args, "--proxy-mode", "ipvs", "--ipvs-scheduler", "lc")
		} else {
			args = append(args, "--scheduler", scheduler)
		}
		p, err := c.Node().StartProgram(dir, c.Node().Name(), f.Slipstream, args...)
		if err != nil {
			return err
		}
		f.proxies = append(f.proxies, p)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, c := range f.clients {
		err := f.proxies[i].Await(ctx, func(ctx context.Context) error {
			conn, err := c.DialContext(ctx, "tcp4", web.String())
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// manifests describe the Service and the idle ones.
func (f *fleet) manifests() []byte {
	var b strings.Builder
	service := func(name string, at netip.AddrPort, endpoints []netip.Addr) {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {namespace: bench, name: %s}
spec: {clusterIP: %s, clusterIPs: [%s], ports: [{port: %d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: bench, name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints:
`, name, at.Addr(), at.Addr(), at.Port(), name, name)
		for _, a := range endpoints {
			fmt.Fprintf(&b, "  - {addresses: [%s]}\n", a)
		}
	}
	var servers []netip.Addr
	for _, s := range f.servers {
		servers = append(servers, s.Addr(false))
	}
	service("web", web, servers)
	for i := range f.Idle {
		var all []netip.Addr
		for n := range 10 {
			all = append(all, lab.Nth(pods, 10*i+n))
		}
		service(fmt.Sprintf("idle-%d", i), netip.AddrPortFrom(lab.Nth(idle, i+1), 80), all)
	}
	return []byte(b.String())
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
		before, err1 := f.usedByProxies()
		err2 := bench.Sleep(ctx, time.Until(to))
		after, err3 := f.usedByProxies()
		f.used = (after - before).Seconds() / length.Seconds() / float64(len(f.proxies))
		return errors.Join(err, err1, err2, err3)
	})
	return g.Wait()
}

func (f *fleet) usedByProxies() (sum time.Duration, err error) {
	for _, p := range f.proxies {
		used, err := bench.Used(p.PID())
		if err != nil {
			return 0, p.Explain(err)
		}
		sum += used
	}
	return sum, nil
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
