// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// Verify compares the flows with conntrack, and what the program knows of interfaces and of its lease with what an Engine tells
// it. It is for an Engine of OpenToRead, after Detached. It returns the differences, which may be of a connection that
// is ending.
func (e *Engine) Verify(ctx context.Context) (faults []string, err error) {
	flows, err := pinned(e.netns)
	if flows == nil {
		return nil, err // which Detached says
	}
	all := map[programTuple]programFlow{}
	err = elements(flows, func(key *programTuple, f *programFlow) { all[*key] = *f })
	if err = errors.Join(err, flows.Close()); err != nil {
		return nil, err
	}
	// Connections that are learned from now on are no differences.
	entries, err := e.tracked(ctx)
	if err != nil {
		return nil, err
	}
	for key, f := range all {
		fault, sealed := "", f
		sealed.seal()
		switch entry, is := entries[key.get()]; {
		case f.Seal != sealed.Seal || f.From != key:
			fault = "is damaged"
		case !is:
			fault = "is of no connection"
		case reversed(f.To.get()) != entry.other || f.Reply&1 == 1 != entry.reply:
			fault = fmt.Sprintf("makes it %s, but conntrack %s", text(f.To.get()), text(reversed(entry.other)))
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("the fast path for %s %s", text(key.get()), fault))
		}
	}
	more, err := e.verifyProgram()
	return append(faults, more...), err
}

func text(t ctnetlink.Tuple) string { return fmt.Sprintf("%s -> %s", t.Src, t.Dst) }

// direction is what conntrack knows of the packets of one direction: those of the other one.
type direction struct {
	other ctnetlink.Tuple
	reply bool
}

// tracked reads conntrack, by the packets of both directions.
func (e *Engine) tracked(ctx context.Context) (all map[ctnetlink.Tuple]direction, err error) {
	ct, err := ctnetlink.Dial(e.netns)
	if err != nil {
		return nil, err
	}
	all = map[ctnetlink.Tuple]direction{}
	var entry ctnetlink.Entry
	err = ct.Dump(ctx, unix.AF_UNSPEC, nil, func(data []byte) {
		if entry.Parse(data) {
			all[entry.Original], all[entry.Reply] = direction{entry.Reply, false}, direction{entry.Original, true}
		}
	})
	return all, errors.Join(err, ct.Close())
}

// verifyProgram compares what the program at the interfaces has beside flows.
func (e *Engine) verifyProgram() (faults []string, err error) {
	maps := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range maps {
			err = errors.Join(err, m.Close())
		}
	}()
	for at, a := range e.attached {
		if e.part[at.index] && !at.egress {
			bpffs.OpenMaps(a.program(), maps)
		}
	}
	if len(maps) == 0 {
		return nil, nil // which Detached says
	}
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	lease, interfaces := spec.Variables["lease"], maps["interfaces"]
	data := maps[lease.SectionName]
	if interfaces == nil || data == nil {
		return []string{"the BPF program of the fast path is another one"}, nil
	}
	has := map[uint32]bool{}
	var key uint32
	var value programInterface
	for i := interfaces.Iterate(); i.Next(&key, &value); {
		if has[key] = true; !e.part[int(key)] {
			faults = append(faults, fmt.Sprintf("the BPF program of the fast path knows interface %d, which takes no part", key))
		}
	}
	for index, takesPart := range e.part {
		if takesPart && !has[uint32(index)] {
			faults = append(faults, fmt.Sprintf("the BPF program of the fast path does not know interface %d", index))
		}
	}
	bytes, err := data.LookupBytes(uint32(0))
	if err != nil || len(bytes) < int(lease.Offset)+8 {
		return faults, errors.Join(errors.New("lease of the fast path"), err)
	}
	until := binary.NativeEndian.Uint64(bytes[lease.Offset:])
	switch left := time.Duration(until - bpffs.Now()); {
	case until == 0: // there are IPsec policies
	case left < 0:
		faults = append(faults, fmt.Sprintf("the BPF program of the fast path does nothing: no proxy has renewed its lease for %s", -left.Round(time.Second)))
	case left > e.lease+time.Second:
		faults = append(faults, fmt.Sprintf("the BPF program of the fast path has a lease for %s, which no proxy gives", left.Round(time.Second)))
	}
	return faults, nil
}
