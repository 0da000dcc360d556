// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// leastChanges are made however long they take.
const leastChanges = 3

// changes replaces single endpoints, one after the other.
func (m *measurement) changes(ctx context.Context) error {
	before, err := used(m.proxy.PID())
	if err != nil {
		return err
	}
	begin := time.Now()
	for k := 0; k < m.options.Changes && (k < leastChanges || time.Since(begin) < m.options.Budget); k++ {
		// Up to half as long again, so that nothing periodic is always met or missed.
		if err := pause(ctx, m.subject.pause+rand.N(m.subject.pause/2)); err != nil {
			return err
		}
		took, err := m.change(ctx, m.changed[k%len(m.changed)])
		if err != nil {
			return fmt.Errorf("change %d: %w", k+1, err)
		}
		m.ChangesMS = append(m.ChangesMS, millis(took))
	}
	if err := m.calm(ctx); err != nil {
		return err
	}
	after, err := used(m.proxy.PID())
	if err != nil {
		return err
	}
	spent, n := after.minus(before), float64(len(m.ChangesMS))
	m.ChangeUserMS, m.ChangeSystemMS = millis(spent.user)/n, millis(spent.system)/n
	m.log("%s: %d changes in %v", m.subject.name, len(m.ChangesMS), time.Since(begin).Round(time.Millisecond))
	return nil
}

// change replaces the endpoint of a Service that has one, and measures from the API
// server's reply until a connection gets there.
func (m *measurement) change(ctx context.Context, i int) (took time.Duration, err error) {
	pod := m.replace(i, 0)
	err = m.prober.do(func() error {
		if err := write(ctx, m.plane.Client, m.content, i, 0); err != nil {
			return err
		}
		replied := time.Now()
		landed, err := m.prober.until(ctx, frontend(i), replied, func(a netip.Addr) bool { return a == pod })
		took = landed.Sub(replied)
		return err
	})
	return took, err
}
