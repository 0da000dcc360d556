// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// checked is how many of a burst's changes are looked at afterwards.
const checked = 10

// bursts replaces endpoints of many Services at a time.
func (m *measurement) bursts(ctx context.Context) error {
	begin := time.Now()
	for k := 0; k < m.options.Bursts && (k < 1 || time.Since(begin) < m.options.Budget); k++ {
		if err := m.calm(ctx); err != nil {
			return err
		}
		if err := m.burst(ctx); err != nil {
			return fmt.Errorf("burst %d: %w", k+1, err)
		}
	}
	m.log("%s: %d bursts in %v", m.subject.name, len(m.BurstsMS), time.Since(begin).Round(time.Millisecond))
	return nil
}

// burst measures from the API server's last reply until the change that came last has its
// effect. The API server passes changes on in the order in which it took them; that
// all the others have theirs too is looked at afterwards, in a sample.
func (m *measurement) burst(ctx context.Context) error {
	some := m.plain
	m.random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:min(m.options.Burst-1, len(some))]
	pods := make([]netip.Addr, len(some))
	for k, i := range some {
		pods[k] = m.replace(i, 0)
	}
	begin := time.Now()
	if err := each(len(some), func(k int) error { return write(ctx, m.plane.Client, m.content, some[k], 0) }); err != nil {
		return err
	}
	written := time.Since(begin)
	behind, err := m.change(ctx, m.changed[m.random.IntN(len(m.changed))])
	if err != nil {
		return err
	}
	m.BurstsMS = append(m.BurstsMS, millis(behind))
	m.BurstWrittenMS = append(m.BurstWrittenMS, millis(written))
	return m.prober.do(func() error {
		for k := range min(checked, len(some)) {
			_, err := m.prober.until(ctx, frontend(some[k]), time.Now(), func(a netip.Addr) bool { return a == pods[k] })
			if err != nil {
				return fmt.Errorf("of the burst, Service %s, endpoint %v: %w", name(some[k]), pods[k], err)
			}
		}
		return nil
	})
}
