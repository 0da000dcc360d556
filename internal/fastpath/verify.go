// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Verify compares the table, and of the engine EBPF where its program is attached and what its maps have, with what a Controller
// programs for a full description, and flows with conntrack. It changes nothing, and needs no Controller that runs. It returns the number of rules, and the differences, which may be of a change
// that is just being programmed. If the kernel lacks the engine, or the fast path is off, there should be no table.
func Verify(ctx context.Context, config Config, full *desired.Change) (rules int, faults []string, err error) {
	c, err := newController(config)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	t, err := c.conn.Contents(table)
	if err != nil {
		return 0, nil, err
	}
	if t != nil {
		rules = len(t.Rules)
	}
	wanted := !c.Off()
	if wanted {
		if err = c.openToRead(); feature.Lacks(err) {
			wanted, err = false, nil
		}
	}
	switch {
	case err != nil || !wanted && t == nil:
		return rules, nil, err
	case !wanted:
		return rules, []string{tableText + " exists, though the fast path is off, or not possible"}, nil
	case t == nil:
		return rules, []string{tableText + " does not exist"}, nil
	}
	if err := errors.Join(c.list(), c.readRules(ctx)); err != nil {
		return rules, nil, err
	}
	c.engine.begin()
	c.skeleton(&c.batch)
	c.writeFull(full)
	c.devices = wantedDevices(c.links)
	c.writeMembers(c.devices)
	c.rules(&c.batch)
	faults, err = c.conn.Differences(table, t, &c.batch, func(string) bool { return false }, nameElement)
	for i := range faults {
		faults[i] = tableText + ": " + faults[i]
	}
	for _, check := range []error{c.engine.checkTable(t), c.engine.check()} {
		if errors.Is(check, dataplane.ErrDamaged) {
			faults = append(faults, strings.TrimPrefix(check.Error(), dataplane.ErrDamaged.Error()+": "))
		} else {
			err = errors.Join(err, check)
		}
	}
	if e, is := c.engine.(*ebpfEngine); is {
		more, failed := e.program.Verify(ctx)
		faults, err = append(faults, more...), errors.Join(err, failed)
	}
	return rules, faults, err
}

// openToRead is open for Verify.
func (c *Controller) openToRead() (err error) {
	err = c.chooseEngine()
	if err != nil || c.config.Engine != EBPF {
		return err
	}
	program, err := ebpf.OpenToRead(c.config.NetNS, c.config.withoutTCX, cmp.Or(c.config.lease, ebpf.Lease), c.chosen)
	c.engine = &ebpfEngine{Controller: c, program: program}
	return err
}

// nameElement describes an element of the table.
func nameElement(set string, e nfnl.Element) string {
	for i := range families {
		f := &families[i]
		if k, ok := f.parseFrontendKey(e.Key); ok && (set == f.frontends.Name || set == f.nodePorts.Name) {
			return fmt.Sprintf("%s of Service %s", k, e.Comment)
		}
		if a, ok := netip.AddrFromSlice(e.Key); ok && slices.Contains([]string{f.nodeAddresses.Name, f.pods.Name, f.excluded.Name}, set) {
			return a.String()
		}
	}
	return strings.TrimRight(string(e.Key), "\x00")
}
