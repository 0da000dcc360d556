// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	networkingv1 "k8s.io/api/networking/v1"
)

// watcher is a recorder that tells when a check is due. After it has told, it has to be checked twice.
type watcher struct {
	*recorder
	told   chan struct{}
	watch  int // calls of Watch since it last told
	checks int
}

func (w *watcher) Check(ctx context.Context) error {
	w.set(func() { w.checks++ })
	return w.recorder.Check(ctx)
}

func (w *watcher) Watch(context.Context) (told <-chan struct{}) {
	w.set(func() {
		if w.watch++; w.watch == 2 {
			w.told = make(chan struct{})
		}
		told = w.told
	})
	return told
}

func (w *watcher) tell() {
	w.set(func() {
		close(w.told)
		w.told, w.watch = nil, 0
	})
}

type nothing struct{}

func (nothing) Reconcile(context.Context, *desired.Change) (s dataplane.Stats, err error) { return }
func (nothing) Apply(context.Context, *desired.Change) (s dataplane.Stats, err error)     { return }
func (nothing) Check(context.Context) error                                               { return nil }

// resting says whether it rests.
type resting struct {
	nothing
	rests bool
}

func (r resting) Rests() bool { return r.rests }

// TestRest counts checks while the dataplane tells when they are due, and while something else is checked too.
func TestRest(t *testing.T) {
	const period = time.Second
	var policies atomic.Int32
	for name, o := range map[string]Options{
		"rests": {}, "rests with a fast path": {FastPath: resting{rests: true}},
		"fast path": {FastPath: nothing{}}, "busy fast path": {FastPath: resting{}}, "sockets": {Sockets: nothing{}},
		"rests with policies": {PolicyChanged: func(context.Context) error {
			if policies.Add(1) != 3 {
				return nil
			}
			time.Sleep(5 * period)
			return errors.New("refused once")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watcher{recorder: &recorder{}}
				o.CheckPeriod = period
				l := &loop{recorder: w.recorder, t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
				l.proxy = New(l.events, desired.New(desired.Config{}), w, l.metrics, o)
				ctx, stop := context.WithCancel(t.Context())
				defer func() { stop(); <-l.done }()
				begin, n := time.Now(), 0
				go func() { l.done <- l.proxy.Run(ctx) }()
				checked := func(until time.Duration, want int) {
					t.Helper()
					time.Sleep(time.Until(begin.Add(until + period/2)))
					synctest.Wait()
					w.set(func() {
						if w.checks != want {
							t.Errorf("%d checks after %v, want %d", w.checks, until, want)
						}
						w.checks = 0
					})
				}
				l.events <- []source.Event{service(1), synced}
				checked(1*period, 1)
				checked(2*period, 1) // the second one has it rest
				if !strings.HasPrefix(name, "rests") {
					checked(30*period, 28)
					return
				}
				checked(61*period, 0)
				checked(122*period, 2) // at 62 and 122
				w.tell()               // at 122.5: not before 123
				synctest.Wait()
				w.set(func() {
					if w.checks > 0 {
						t.Error("it was checked within a period")
					}
				})
				checked(123*period, 1)
				checked(124*period, 1)
				checked(134*period, 0)
				time.Sleep(period / 10)
				w.tell() // at 134.6: at once
				synctest.Wait()
				w.set(func() {
					if w.checks != 1 {
						t.Errorf("%d checks when it told", w.checks)
					}
					w.check, w.checks = dataplane.ErrDamaged, 0
				})
				checked(136*period, 1) // finds damage
				l.wait("full +s1", "full +s1")
				checked(137*period, 1)
				checked(144*period, 0) // rests
				l.events <- []source.Event{service(2)}
				l.wait("full +s1", "full +s1", "change +s2")
				changed := []source.Event{{Type: source.Set, Object: &networkingv1.NetworkPolicy{}}}
				if o.PolicyChanged == nil {
					time.Sleep(5 * period)
					l.events <- changed
					synctest.Wait()
					w.set(func() { w.checks = 0 })
					time.Sleep(5 * period)
					synctest.Wait()
					if w.set(func() { n = w.checks }); n > 0 {
						t.Errorf("%d checks after a policy has changed that nobody needs", n)
					}
					return
				}
				called := func(want int32, later time.Duration) {
					t.Helper()
					time.Sleep(later)
					synctest.Wait()
					if got := policies.Load(); got != want {
						t.Errorf("PolicyChanged was called %d times, want %d", got, want)
					}
				}
				time.Sleep(20 * period)
				l.events <- changed
				called(1, period) // at rest
				l.events <- changed
				called(1, policyPause-2*period)
				called(2, 2*period)
				time.Sleep(40 * period)
				l.events <- changed
				called(3, period)
				called(3, policyPause-2*period)
				called(4, 2*period) // after an error
			})
		})
	}
}

// TestToldOfDamage has another program delete the table while the loop rests.
func TestToldOfDamage(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary)
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	check(t, err)
	kernel, err := nftables.New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	defer kernel.Close()
	const period = 2 * time.Second
	l := &loop{t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	l.proxy = New(l.events, desired.New(desired.Config{}), kernel, l.metrics, Options{CheckPeriod: period})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { l.done <- l.proxy.Run(ctx) }()
	defer func() { cancel(); check(t, <-l.done) }()
	rests := func() {
		t.Helper()
		l.until("the kernel is to tell", func() (listens bool) {
			check(t, node.Do(func() error {
				all, err := os.ReadFile("/proc/thread-self/net/netlink")
				for line := range strings.Lines(string(all)) {
					f := strings.Fields(line)                                              // sk Eth Pid Groups ...
					listens = listens || f[1] == "12" && f[2] != "0" && f[3] == "00000040" // NFNLGRP_NFTABLES
				}
				return err
			}))
			return listens
		})
		time.Sleep(period) // since the last check
	}
	l.events <- append(many(1, 3), synced)
	for n, command := range []string{"delete table ip slipstream", "flush ruleset", "add table ip other"} {
		rests()
		_, err := node.Run(t.Context(), "nft", command)
		check(t, err)
		damaged := time.Now()
		if command == "add table ip other" {
			time.Sleep(period / 2)
		} else {
			l.until("it is repaired", func() bool { return testutil.ToFloat64(l.metrics.Repairs) == float64(n+1) })
			if took := time.Since(damaged); took > period/2 {
				t.Errorf("%s was found after %v", command, took)
			}
		}
	}
	if n := testutil.ToFloat64(l.metrics.Repairs); n != 2 {
		t.Errorf("%v repairs", n)
	}
	rests()
	l.events <- many(2, 3)
	l.until("a change after rest", func() bool {
		out, err := node.Run(t.Context(), "nft", "list ruleset")
		return err == nil && strings.Contains(string(out), "10.96.0.2 . tcp . 80")
	})
}
