// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sync/errgroup"
)

const (
	metricsAt = "127.0.0.1:10249"
	pageAt    = "127.0.0.1:10280"
)

var endpoints = netip.MustParsePrefix("10.0.0.0/10") // of all Services, a part of cluster.Pods

// node has a client, and a server that has the addresses of all endpoints.
type node struct {
	*Options
	*cluster.Nodes
	loads []*lab.Load
}

// build makes the node. Connections to its Services begin with the first proxy.
func (o *Options) build(ctx context.Context) (n *node, err error) {
	n = &node{Options: o}
	if n.Nodes, err = cluster.NewNodes(1, o.Slipstream); err != nil {
		return nil, err
	}
	defer lab.OnError(&err, n.close)
	server, err := n.Pod(1, "server", 3)
	if err != nil {
		return nil, err
	}
	if err := server.AddLocalRange(endpoints); err != nil {
		return nil, err
	}
	if out, err := n.All[0].Run(ctx, "ip", "route", "add", endpoints.String(), "via", server.Addr(false).String(), "dev", server.NodeLink(), "onlink"); err != nil {
		return nil, fmt.Errorf("route to %s: %w: %s", endpoints, err, out)
	}
	if _, err := server.Serve(lab.TCP, netip.MustParseAddrPort(fmt.Sprintf("0.0.0.0:%d", cluster.TargetPort))); err != nil {
		return nil, err
	}
	c := cluster.New(cluster.Config{Services: n.Services, Endpoints: n.Endpoints, Namespace: "bench"})
	return n, n.Write(c.Events())
}

func (n *node) close() error {
	for _, l := range n.loads {
		_ = l.Close()
	}
	return n.Nodes.Close()
}

// connect begins the connections, and waits until conntrack has its usual number of them.
func (n *node) connect(ctx context.Context) error {
	for i := range n.Busy {
		l, err := n.Clients[0].StartLoad(ctx, lab.TCP, netip.AddrPortFrom(cluster.ClusterIP(i), cluster.Port), lab.LoadOptions{Pace: time.Second * time.Duration(n.Busy) / time.Duration(n.Rate)})
		if err != nil {
			return err
		}
		n.loads = append(n.loads, l)
	}
	return bench.Sleep(ctx, time.Duration(n.Before)*time.Second)
}

func (n *node) connections() (ok int64, err error) {
	for _, l := range n.loads {
		s := l.Stats()
		ok += s.OK
		if s.Failed > 0 {
			err = fmt.Errorf("connections: %s", s)
		}
	}
	return ok, err
}

// look asks again and again, with pauses, until ctx ends. It returns the first error before that.
func (n *node) look(ctx context.Context, pause time.Duration, urls ...string) error {
	for {
		for _, url := range urls {
			status, text, err := n.All[0].Get(ctx, url)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%s: status %d: %.1000s", url, status, text)
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		if bench.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// turn runs a proxy with an observer. The proxy counts Services if somebody looks.
func (n *node) turn(ctx context.Context, observer string, into bench.Samples) (err error) {
	args := []string{"--metrics-bind-address", metricsAt}
	if observer != nobody {
		args = append(args, "--service-metrics", "--ui-bind-address", pageAt)
	}
	all, err := n.Start(ctx, args...)
	if err != nil {
		return err
	}
	p := all[0]
	defer func() { err = errors.Join(err, p.Terminate(ctx)) }()
	if n.loads == nil {
		if err := n.connect(ctx); err != nil {
			return err
		}
	}
	looking, stop := context.WithCancel(ctx)
	g, looking := errgroup.WithContext(looking)
	if observer != nobody {
		const scrapes = 15 * time.Second // the pause between two scrapes of the metrics
		g.Go(func() error { return n.look(looking, scrapes, "http://"+metricsAt+"/metrics") })
	}
	if v := views[observer]; v.paths != nil {
		urls := collect.From(v.paths, func(path string) string { return "http://" + pageAt + "/data/" + path })
		g.Go(func() error { return n.look(looking, v.pause, urls...) })
	}
	g.Go(func() error {
		defer stop()
		if err := bench.Sleep(looking, time.Duration(n.Settle)*time.Second); err != nil {
			return err
		}
		return n.measure(looking, p, into)
	})
	if err := g.Wait(); err != nil {
		return p.Explain(err)
	}
	return nil
}

// measure measures the proxy for the length of a turn.
func (n *node) measure(ctx context.Context, p *lab.Program, into bench.Samples) error {
	made, _ := n.connections()
	before, err := bench.Used(p.PID())
	if err != nil {
		return err
	}
	begin := time.Now()
	var most, since, entries uint64
	for range n.Seconds {
		if err := bench.Sleep(ctx, time.Second); err != nil {
			return err
		}
		m, err := bench.Memory(p.PID())
		if err != nil {
			return err
		}
		most, since = max(most, m.VmRSS), m.VmHWM
		text, err := n.All[0].Sysctl("netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		count, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		entries = max(entries, count)
	}
	took := time.Since(begin).Seconds()
	after, err := bench.Used(p.PID())
	if err != nil {
		return err
	}
	now, err := n.connections()
	into.Add(cpu.Name, 100*(after-before).Seconds()/took)
	into.Add(memory.Name, float64(most))
	into.Add(peak.Name, float64(since))
	into.Add(rate.Name, float64(now-made)/took)
	into.Add(tracked.Name, float64(entries))
	return err
}
