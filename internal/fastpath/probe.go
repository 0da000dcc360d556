// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// abilities are what the kernel can do.
type abilities struct {
	byName   bool // keeps a flowtable's devices by name, whether they exist or not (Linux 6.16)
	prefixes bool // takes the beginnings of names (Linux 6.17, and later versions of 6.16)
}

var (
	probeTable = nfnl.Table{Family: nfnl.INET, Name: "slipstream-probe"}
	nobody     = nfnl.Table{Family: nfnl.INET, Name: "slipstream-none"}
)

// nobodysDevice is a name that no interface has.
const nobodysDevice = "slipstream-none"

// dryRun finds out whether the kernel would take what fill adds. The transaction
// ends with something impossible, so that nothing comes of it.
func dryRun(conn *nfnl.Conn, fill func(*nfnl.Batch) error) error {
	var b nfnl.Batch
	if err := fill(&b); err != nil {
		return err
	}
	b.DeleteTable(nobody)
	err := conn.Commit(0, &b)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) && refused.Table == nobody {
		return nil
	}
	return err
}

// probe finds out what the kernel can do. It returns ErrUnsupported where it has no
// flowtables, or lacks what the rules that fill them need.
func probe(conn *nfnl.Conn) (able abilities, err error) {
	err = dryRun(conn, func(b *nfnl.Batch) error {
		b.AddTable(probeTable, "")
		b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: nfnl.FlowtableCounter})
		b.AddCounter(probeTable, counterOffloaded)
		b.AddChain(probeTable, chains[1])
		// Named counters are an option of the kernel's configuration until Linux 6.2.
		return b.AddRule(probeTable, chainForward, "", append(packetsUpTo(1), &expr.FlowOffload{Name: flowtableName}, nfnl.CountIn(counterOffloaded))...)
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return able, err
	case err != nil:
		return able, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	takes := func(d nfnl.Device) bool { return canHave(conn, 0, []nfnl.Device{d}) == nil }
	able.byName = takes(nfnl.Device{Name: nobodysDevice})
	able.prefixes = able.byName && takes(nfnl.Device{Name: nobodysDevice, Prefix: true})
	return able, nil
}

// canHave finds out whether a flowtable can have flags, beside counting, and
// devices.
func canHave(conn *nfnl.Conn, flags uint32, devices []nfnl.Device) error {
	return dryRun(conn, func(b *nfnl.Batch) error {
		b.AddTable(probeTable, "")
		b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: flags | nfnl.FlowtableCounter, Devices: devices})
		return nil
	})
}
