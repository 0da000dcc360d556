// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sync/errgroup"
)

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
