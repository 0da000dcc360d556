// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
)

// sampled is how many Services have to answer, beside those that changes are made to.
const sampled = 50

// start starts the subject and waits until all Services of a sample answer. They are
// asked one after the other: one that has answered goes on to, so when the last one has,
// all do.
func (m *measurement) start(ctx context.Context, n *node, o proxies.Options) (err error) {
	sample := append([]int(nil), m.changed...)
	for _, k := range m.random.Perm(len(m.plain))[:min(sampled, len(m.plain))] {
		sample = append(sample, m.plain[k])
	}
	begin := time.Now()
	if m.proxy, err = proxies.Start(ctx, m.subject.kind, n.Node.Node, o); err != nil {
		return err
	}
	m.prober.ended = m.proxy.Done()
	stop := watchCommands(m.proxy.PID())
	var answered time.Time
	err = m.prober.do(func() error {
		for _, i := range sample {
			answered, err = m.prober.until(ctx, frontend(i), begin, func(netip.Addr) bool { return true })
			if err != nil {
				return fmt.Errorf("start: Service %s: %w", name(i), err)
			}
		}
		return nil
	})
	if err == nil {
		m.StartMS = millis(answered.Sub(begin))
		m.log("%s: Services answer after %v", m.subject.name, answered.Sub(begin).Round(time.Millisecond))
		err = m.started(ctx)
	}
	m.PeakCommandByte = stop()
	return err
}

// started measures what the start has used, when all that belongs to it is done.
func (m *measurement) started(ctx context.Context) error {
	if err := m.calm(ctx); err != nil {
		return err
	}
	cpu, err := used(m.proxy.PID())
	if err != nil {
		return err
	}
	m.StartUserMS, m.StartSystemMS = millis(cpu.user), millis(cpu.system)
	m.PeakStartBytes, err = peak(m.proxy.PID())
	return err
}
