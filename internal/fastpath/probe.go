// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// abilities are optional features of the kernel.
type abilities struct {
	byName   bool // keeps a flowtable's devices by name, whether they exist or not (Linux 6.16)
	prefixes bool // accepts prefixes of names (Linux 6.17, and later versions of 6.16)
}

var probeTable = nfnl.Table{Family: nfnl.INET, Name: "slipstream-probe"}

// noDevice is a name that no interface has.
const noDevice = "slipstream-none"

// probe determines the kernel's abilities without committing anything. It returns
// ErrUnsupported if the kernel has no flowtables, or lacks an expression of the rules.
func probe(conn *nfnl.Conn) (able abilities, err error) {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: nfnl.FlowtableCounter})
	b.AddCounter(probeTable, counterOffloaded)
	b.AddChain(probeTable, chains[len(chains)-1])
	// Named counters are an option of the kernel's configuration until Linux 6.2.
	b.AddRule(probeTable, chainForward, "", packetsUpTo(1), offload())
	err = conn.DryRun(&b)
	var refused *nfnl.BatchError
	switch {
	case errors.As(err, &refused) && refused.Lacks():
		return able, fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return able, err
	}
	accepts := func(d nfnl.Device) bool { return canHave(conn, 0, d) == nil }
	able.byName = accepts(nfnl.Device{Name: noDevice})
	able.prefixes = able.byName && accepts(nfnl.Device{Name: noDevice, Prefix: true})
	return able, nil
}

// canHave returns an error unless a flowtable can have the flags, beside counting, and the
// device.
func canHave(conn *nfnl.Conn, flags uint32, d nfnl.Device) error {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: flags | nfnl.FlowtableCounter, Devices: []nfnl.Device{d}})
	return conn.DryRun(&b)
}
