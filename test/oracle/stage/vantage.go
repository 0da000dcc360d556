// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// The vantages: where clients are.
const (
	PodNoEndpoint = "a"        // a pod of n1
	PodEndpoint   = "b"        // a pod of n1 that is often an endpoint itself
	OnNode        = Node1      // n1 itself
	OtherPod      = "f"        // a pod of n2
	Outside       = "client"   // outside the cluster
	Stranger      = "stranger" // outside, from another range
)

// Vantage is where connections come from.
type Vantage struct {
	Name    string
	Machine *lab.Machine

	sources Pair[netip.Prefix] // the addresses to take; not valid: the machine's own
	own     bool               // whether the first is the machine's own
}

func (s *Stage) vantages(ctx context.Context) error {
	for _, v := range []*Vantage{
		{PodNoEndpoint, s.machines["a"], aliases, true},
		{PodEndpoint, s.machines["b"], Pair[netip.Prefix]{}, true},
		{OnNode, s.machines[Node1], Pair[netip.Prefix]{}, true},
		{OtherPod, s.machines["f"], Pair[netip.Prefix]{}, true},
		{Outside, s.machines["client"], Clients, false},
		{Stranger, s.machines["client"], Strangers, false},
	} {
		s.Vantages[v.Name] = v
	}
	return s.warm(ctx)
}

// Many says whether the vantage has any number of addresses to connect from.
func (v *Vantage) Many() bool { return v.sources[0].IsValid() }

// Source is the i-th address to connect from; the invalid address stands for the one
// that the kernel chooses.
func (v *Vantage) Source(family, i int) netip.Addr {
	if v.own {
		if i == 0 || !v.Many() {
			return netip.Addr{}
		}
		i--
	}
	b := v.sources[family].Masked().Addr().AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(i)+1)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Connect makes one connection from the i-th address.
func (v *Vantage) Connect(p lab.Protocol, to netip.AddrPort, i int, opts ...lab.ConnectOption) (lab.Reply, error) {
	if source := v.Source(Family(to.Addr()), i); source.IsValid() {
		opts = append(opts, lab.Source(netip.AddrPortFrom(source, 0)))
	}
	return v.Machine.Connect(p, to, opts...)
}

// warmTimeout bounds the first connections, which may have to be tried again.
const warmTimeout = 5 * time.Second

// warm makes each vantage talk to each endpoint's own address once, so that no later
// connection has to wait for neighbor discovery, and so that it is known that they can.
func (s *Stage) warm(context.Context) error {
	var wg sync.WaitGroup
	errs := make(chan error, 1000)
	for _, v := range s.Vantages {
		for _, e := range Endpoints {
			for _, a := range e.Address {
				wg.Go(func() {
					_, err := v.Connect(lab.TCP, netip.AddrPortFrom(a, TargetPorts[0]), 0, lab.Timeout(warmTimeout))
					if err != nil {
						errs <- fmt.Errorf("%s cannot talk to %s: %w", v.Name, e.Name, err)
					}
				})
			}
		}
		for _, r := range VIPs {
			wg.Go(func() {
				reply, err := v.Connect(lab.TCP, netip.AddrPortFrom(r.Masked().Addr().Next().Next(), 1), 0, lab.Timeout(warmTimeout))
				if err != nil || reply.Server != Elsewhere {
					errs <- fmt.Errorf("%s is not led elsewhere without a proxy: %v %v", v.Name, reply.Server, err)
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
