// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
)

// flowtableEngine is the engine [Flowtable]. Its flowtable is part of the table.
type flowtableEngine struct {
	*Controller
	hardware bool // the flowtable has the flag for hardware
	replace  bool // the next setDevices replaces the flowtable
}

func (c *flowtableEngine) chains() []nfnl.Chain { return chains }

func (c *flowtableEngine) objects(b *nfnl.Batch) {
	b.AddCounter(table, counterOffloaded)
	b.AddFlowtable(table, c.flowtable(nil))
}

func (c *flowtableEngine) fits(t *nfnl.Contents) bool {
	f := t.Flowtable(flowtableName)
	return f != nil && c.isProgrammed(f)
}

func (c *flowtableEngine) offload(rule writeRule) {
	rule(chainOffload, "the way back to the sender is by another interface", nowhereBack(), ret())
	rule(chainOffload, "always; a copy that nft has loaded never matches", nfnl.UnlessLoaded(), offload())
}

func (c *flowtableEngine) begin()               { c.hardware = c.hardware || c.wantsHardware() }
func (c *flowtableEngine) programmed() error    { return ebpf.Remove(c.config.NetNS) }
func (c *flowtableEngine) survey() error        { return c.readChains(seesAll) }
func (c *flowtableEngine) outdated() bool       { return c.chainsOutdated() }
func (c *flowtableEngine) leave() error         { return nil }
func (c *flowtableEngine) keepsMTU() bool       { return true } // those of IPv6
func (c *flowtableEngine) flushed(*Flush) error { return nil }
func (c *flowtableEngine) check() error         { return nil }
func (c *flowtableEngine) run(context.Context)  {}
func (c *flowtableEngine) cleanup() error       { return ebpf.Remove(c.config.NetNS) }
func (c *flowtableEngine) close() error         { return nil }

func (c *flowtableEngine) takes(i *netif.Interface) (bool, string) { return true, c.others.at(i) }

// seesAll reports whether all packets pass a chain with their conntrack entry: it is at the ingress, before the flowtable.
func seesAll(chain *nfnl.BaseChain) bool {
	const atIngress = 0 // NF_NETDEV_INGRESS
	return (chain.Table.Family == nfnl.INET || chain.Hook == atIngress) && chain.Priority < flowtablePriority
}

// recovers goes on without hardware if the driver of a new interface does not take flows.
func (c *flowtableEngine) recovers(err error) bool {
	if !errors.Is(err, unix.EOPNOTSUPP) || !c.hardware {
		return false
	}
	c.refusedHardware(err)
	c.hardware, c.replace = false, true
	return true
}

func (c *flowtableEngine) renew(t *nfnl.Contents) (*nfnl.Batch, error) {
	return renewFlowtable(t, c.flowtable(c.devices.list()))
}

func (c *flowtableEngine) stats(s *Stats) (err error) {
	s.Hardware = c.hardware
	s.Offloaded, _, err = c.conn.Counter(table, counterOffloaded)
	return err
}

// flowtable returns the flowtable with the given devices.
func (c *flowtableEngine) flowtable(devices []nfnl.Device) *nfnl.Flowtable {
	f := &nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}
	if c.hardware {
		f.Flags |= nfnl.FlowtableHardware
	}
	return f
}

// isProgrammed reports whether a flowtable is the one that was programmed, whatever its devices.
func (c *flowtableEngine) isProgrammed(f *nfnl.Flowtable) bool {
	want := c.flowtable(nil)
	return f.Flags == want.Flags && f.Priority == want.Priority
}

// wantsHardware reports whether to use hardware: it is configured, and the drivers of all
// interfaces support it.
func (c *flowtableEngine) wantsHardware() bool {
	wanted := wantedDevices(c.links).list()
	if c.config.Hardware == Off || len(wanted) == 0 {
		return false
	}
	for _, d := range wanted {
		err := canHave(c.conn, nfnl.FlowtableHardware, d)
		if refused, is := errors.AsType[*nfnl.BatchError](err); is {
			err = fmt.Errorf("interface %s: its driver does not take flows: %w", d.Name, refused.Errno)
		}
		if err != nil {
			c.refusedHardware(err)
			return false
		}
	}
	return true
}

func (c *flowtableEngine) refusedHardware(err error) {
	if c.config.Hardware == On && c.logOnce(err, "Fast path: no hardware offload, connections take the fast path in software") && c.config.NoHardware != nil {
		c.config.NoHardware(err)
	}
}

// setDevices changes the flowtable's devices to the wanted ones. It also replaces the
// flowtable if a device leaves that is up, because its flows would remain.
func (c *flowtableEngine) setDevices(b *nfnl.Batch, wanted deviceSet) (refused, err error) {
	add, del := wanted.without(c.devices), c.devices.without(wanted)
	exists, up := deviceSet{}, deviceSet{}
	for _, l := range c.links {
		d := nfnl.Device{Name: l.name}
		exists[d], up[d] = true, l.up
	}
	if !c.byName {
		// The kernel has already removed interfaces that do not exist any more.
		del = slices.DeleteFunc(del, func(d nfnl.Device) bool { return !exists[d] })
	}
	if c.replace || slices.ContainsFunc(del, func(d nfnl.Device) bool { return up[d] }) {
		t, err := c.conn.Contents(table)
		c.replace = false
		if err == nil && t == nil {
			err = unix.ENOENT
		}
		if err != nil {
			return nil, err
		}
		replaceFlowtable(b, t.Rules, c.flowtable(wanted.list()))
		return nil, nil
	}
	if len(del) > 0 {
		b.DeleteDevices(table, c.flowtable(del))
	}
	if len(add) > 0 {
		b.AddFlowtable(table, c.flowtable(add))
	}
	return nil, nil
}

// checkTable compares the flowtable, if the kernel returns it, with the one that was
// programmed. Its devices are not compared before the kernel has accepted them, and may differ if interfaces have changed since: then the kernel has the
// devices that the next update of interfaces will program.
func (c *flowtableEngine) checkTable(t *nfnl.Contents) error {
	f := t.Flowtable(flowtableName)
	switch {
	case f == nil:
		return nil
	case !c.isProgrammed(f):
		return damaged("flowtable %s was modified", f.Name)
	case c.unsynced:
		return nil
	}
	has := deviceSet(collect.Set(f.Devices))
	if maps.Equal(has, c.devices) {
		return nil
	}
	all, err := netif.Namespace(c.config.NetNS).List()
	if err != nil {
		return err
	}
	now := wantedDevices(c.choose(all))
	for _, d := range slices.Concat(has.without(c.devices), c.devices.without(has)) {
		if has[d] != now[d] {
			return damaged("flowtable %s has other devices", f.Name)
		}
	}
	return nil
}

// renewFlowtable replaces the flowtable by an equal one.
func renewFlowtable(t *nfnl.Contents, known *nfnl.Flowtable) (*nfnl.Batch, error) {
	f := cmp.Or(t.Flowtable(flowtableName), known)
	if f == nil {
		return nil, errors.New("the kernel does not return the flowtable")
	}
	b := &nfnl.Batch{}
	replaceFlowtable(b, t.Rules, f)
	return b, nil
}

// replaceFlowtable writes a new flowtable in place of the old one. It writes all rules again,
// because a flowtable that rules use cannot be deleted.
func replaceFlowtable(b *nfnl.Batch, rules []nfnl.RuleInfo, f *nfnl.Flowtable) {
	b.FlushTable(table)
	b.DeleteFlowtable(table, f.Name)
	b.AddFlowtable(table, f)
	for _, r := range rules {
		b.AddRuleInfo(table, r)
	}
}

var probeTable = nfnl.Table{Family: nfnl.INET, Name: "slipstream-probe"}

// probe determines, without committing anything, whether the kernel keeps a flowtable's devices by name, whether they exist or
// not (Linux 6.16). The error wraps a [feature.Missing] if the kernel has no flowtables for nf_tables of family inet, or lacks
// an expression of the rules. Distributions have all of them as modules.
func probe(conn *nfnl.Conn) (byName bool, err error) {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: nfnl.FlowtableCounter})
	b.AddCounter(probeTable, counterOffloaded)
	b.AddChain(probeTable, chains[len(chains)-1])
	// Named counters are an option of the kernel's configuration until Linux 6.2.
	b.AddRule(probeTable, chainForward, "", packetsUpTo(1), nowhereBack(), offload())
	err = conn.DryRun(&b)
	switch refused, is := errors.AsType[*nfnl.BatchError](err); {
	case is && refused.Lacks():
		const needs = "needs CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD, CONFIG_NFT_FIB_INET, before Linux 6.2 CONFIG_NFT_OBJREF"
		return false, feature.Missing{Feature: "flowtables", Remedy: needs, Err: err}
	case err != nil:
		return false, err
	}
	const noDevice = "slipstream-none" // a name that no interface has
	return canHave(conn, 0, nfnl.Device{Name: noDevice}) == nil, nil
}

// canHave returns an error unless a flowtable can have the flags, beside counting, and the
// device.
func canHave(conn *nfnl.Conn, flags uint32, d nfnl.Device) error {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: flags | nfnl.FlowtableCounter, Devices: []nfnl.Device{d}})
	return conn.DryRun(&b)
}
