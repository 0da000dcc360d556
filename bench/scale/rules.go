// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/kernel/rulewalk"
	"golang.org/x/sys/unix"
)

// rulesSeries are the rules executed with each number of Services, in the order of the
// table. kube-proxy's rules depend on the Service's place in its list (KUBE-SERVICES).
func rulesSeries(o *options) (all []bench.Series) {
	for _, n := range o.Services {
		all = append(all, bench.Series{
			Name: rulesName(n), Text: bench.Thousands(n) + " Services", Unit: bench.Count, Better: bench.Less, At: n,
			Show: []bench.Statistic{bench.P50, bench.Lowest, bench.Highest},
		})
	}
	return all
}

func rulesName(services int) string { return fmt.Sprintf("rules_%d", services) }

// countRules counts the rules that the kernel executes for the first packet of a connection
// from a pod on the node, to one Service of a random sample after the other. Rules and
// counters are read before and after each. Package rulewalk finds the packet's path through
// all tables, PREROUTING to POSTROUTING: a rule was executed if the packet came to it,
// whether it matched or not. The path must have a destination.
func (m *measurement) countRules(ctx context.Context) (err error) {
	n := m.filled
	defer func() {
		if err != nil {
			err = fmt.Errorf("%d Services: %w", n, err)
		}
	}()
	if err := m.program(ctx); err != nil {
		return err
	}
	// From here on there are no answers, so that only the first packets are counted.
	if _, err := m.pods.Run(ctx, "nft", "table ip silent {\nchain c { type filter hook prerouting priority raw; policy drop; }\n}"); err != nil {
		return err
	}
	defer func() {
		_, failed := m.pods.Run(context.WithoutCancel(ctx), "nft", "delete table ip silent")
		err = errors.Join(err, failed)
	}()
	c := &counter{node: m.node}
	if c.now, err = c.dump(ctx); err != nil {
		return err
	}
	for _, i := range m.sample {
		rules, err := c.connect(ctx, i)
		if err != nil {
			return fmt.Errorf("to Service %s: %w", cluster.Name(i), err)
		}
		m.samples.Add(rulesName(n), float64(rules))
	}
	m.log("%s: %d Services, %v rules", m.subject, n, bench.Median(m.samples[rulesName(n)]))
	return nil
}

// program has the subject program the node, and ends it when it has nothing more to do, so
// that rules and counters are not touched while they are read. The rules stay.
func (m *measurement) program(ctx context.Context) (err error) {
	begin := time.Now()
	if err := m.start(); err != nil {
		return err
	}
	if _, err = m.awaitAll(ctx, m.sample, begin); err == nil {
		err = m.calm(ctx, m.proxy.PID())
	}
	if err != nil {
		err = m.proxy.Explain(err)
	}
	if stopped := m.proxy.Close(); err == nil {
		err = stopped
	}
	return err
}

type counter struct {
	*node
	now rulewalk.Dump
}

func (c *counter) dump(ctx context.Context) (rulewalk.Dump, error) {
	text, err := c.Run(ctx, "iptables-save", "-c")
	if err != nil {
		return nil, err
	}
	return rulewalk.Parse(string(text))
}

// connect sends the first packet of a connection from the client to a Service, and returns
// how many rules the node has executed for it. Nothing may answer.
func (c *counter) connect(ctx context.Context, service int) (rules int, err error) {
	err = c.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) // before the packet is sent again, which is after a second
		if err = unix.Connect(fd, bench.Sockaddr(frontend(service))); errors.Is(err, unix.EINPROGRESS) {
			return nil
		}
		return fmt.Errorf("connect: %w", err)
	})
	if err != nil {
		return 0, err
	}
	before := c.now
	if c.now, err = c.dump(ctx); err != nil {
		return 0, err
	}
	walk, err := rulewalk.Follow(before, c.now, "PREROUTING", "FORWARD", "POSTROUTING")
	if err == nil && walk.Destination == "" {
		err = errSilent
	}
	return walk.Rules, err
}
