// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/executed"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// rulesSubjects are the proxies whose rules are counted.
var rulesSubjects = []string{slipstreamIPTables, kubeProxyIPTables}

// rules counts, and writes the result. A subject of which not all could be counted makes
// an error, after the result has been written.
func rules(ctx context.Context, o *rulesOptions, out io.Writer, log upstream.Log) error {
	r, err := countRules(ctx, o, log)
	if err != nil {
		return err
	}
	err = o.write(out, r.WriteTable, r.WriteJSON)
	for _, s := range r.Subjects {
		if s.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", s.Name, s.Failed))
		}
	}
	return err
}

// countRules fills a cluster more and more, and counts each subject's rules in turn.
func countRules(ctx context.Context, o *rulesOptions, log upstream.Log) (_ *executed.Result, err error) {
	dir, done, err := o.directory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	programs, err := findPrograms(ctx, &o.common, dir, log)
	if err != nil {
		return nil, err
	}
	chosen := programs.choose(ctx, rulesSubjects...)
	r := &executed.Result{
		Benchmark: executed.Benchmark, Machine: machine.This(),
		Endpoints: o.Endpoints, Sample: o.sample, Seed: o.Seed,
	}
	for _, s := range chosen {
		r.Subjects = append(r.Subjects, &executed.Subject{Name: s.name, Version: programs.version(ctx, s)})
	}
	most := o.services[len(o.services)-1]
	w, err := newWorld(ctx, newContent(most, o.Endpoints, 0, o.Seed), len(o.services)*len(chosen), dir, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	there := 0
	for _, n := range o.services {
		if _, err := fill(ctx, w.plane.Client, w.content, there, n); err != nil {
			return nil, err
		}
		there = n
		sample := w.random.Perm(n)[:min(o.sample, n)]
		for i, s := range chosen {
			if r.Subjects[i].Failed != "" {
				continue
			}
			count, err := w.countRules(ctx, o, s, programs.of(s), n, sample)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				log("%s: %v", s.name, err)
				r.Subjects[i].Failed = fmt.Sprintf("%d Services: %v", n, err)
				continue
			}
			log("%s: %d Services, %v rules", s.name, n, count.Median)
			r.Subjects[i].Counts = append(r.Subjects[i].Counts, *count)
		}
	}
	r.LoadAfter = machine.This().Load
	return r, nil
}

// countRules counts the rules that a subject has for connections to a sample of n
// Services.
func (w *world) countRules(ctx context.Context, o *rulesOptions, s subject, program string, n int, sample []int) (c *executed.Count, err error) {
	node, start, err := w.prepare(ctx, s, program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.remove(context.WithoutCancel(ctx))) }()
	if err := w.program(ctx, o, s, node, start, sample); err != nil {
		return nil, err
	}
	// From here on no answers, and so no packets but those that are counted.
	if err := w.pods.ignore(true); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.pods.ignore(false)) }()
	k, err := newCounter(ctx, w, node)
	if err != nil {
		return nil, err
	}
	c = &executed.Count{Services: n}
	for _, i := range sample {
		rules, err := k.connect(ctx, i)
		if err != nil {
			return nil, err
		}
		c.Rules = append(c.Rules, rules)
	}
	if list := k.list(n); len(list) > 0 {
		if c.First, err = k.connect(ctx, list[0]); err != nil {
			return nil, err
		}
		if c.Last, err = k.connect(ctx, list[len(list)-1]); err != nil {
			return nil, err
		}
	}
	c.SumUp()
	return c, nil
}

// program has a subject program a node, and ends it, so that nothing touches rules and
// counters while they are read. What it has programmed stays.
func (w *world) program(ctx context.Context, o *rulesOptions, s subject, n *node, start proxies.Options, sample []int) (err error) {
	begin := time.Now()
	proxy, err := proxies.Start(ctx, s.kind, n.Node.Node, start)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = proxy.Explain(err)
		}
		err = errors.Join(err, proxy.Stop())
	}()
	prober := &prober{client: n.client, timeout: o.Timeout, ended: proxy.Done()}
	err = prober.do(func() error {
		for _, i := range sample {
			_, err := prober.until(ctx, frontend(i), begin, func(netip.Addr) bool { return true })
			if err != nil {
				return fmt.Errorf("to Service %s: %w", name(i), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return calm(ctx, proxy.PID(), o.Timeout)
}
