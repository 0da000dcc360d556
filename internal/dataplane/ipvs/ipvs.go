// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
)

// Options are the settings of IPVS mode (kube-proxy's section "ipvs").
type Options struct {
	Scheduler string         // as in [ipvs.ParseScheduler]; "" is rr
	Exclude   []netip.Prefix // virtual servers in these ranges belong to other programs
	Timeouts  ipvs.Timeouts  // of connections; 0 leaves the kernel's
	StrictARP bool           // arp_ignore=1 and arp_announce=2

	// NewTable makes the dataplane of the table. nil makes that of nftables mode.
	NewTable func(dataplane.Config) (Table, error)
}

// defaultScheduler is kube-proxy's.
const defaultScheduler = "rr"

// Table is the dataplane of the table, of nftables mode or of iptables mode. It honours
// dataplane.Config.VirtualServers.
type Table interface {
	dataplane.Dataplane
	dataplane.Prober
	dataplane.Reader
}

// Backend is the IPVS dataplane. It needs CONFIG_IP_VS with CONFIG_IP_VS_NFCT, what its table
// needs, and CAP_NET_ADMIN in the network namespace.
type Backend struct {
	config  dataplane.Config
	options Options
	table   Table
	conn    *ipvs.Conn
	dummy   *dummy

	scheduler  ipvs.Scheduler // of the options
	schedulers []string       // those that the kernel has; nil before Probe

	servers servers
	drain   drains

	translation translation
	sequence    dataplane.Sequence

	nextSample int // of Check
}

var (
	_ dataplane.Dataplane = (*Backend)(nil)
	_ dataplane.Prober    = (*Backend)(nil)
	_ dataplane.Reader    = (*Backend)(nil)
	_ dataplane.FlowEnder = (*Backend)(nil)
)

// New opens netlink sockets. It programs nothing. Without IPVS in the kernel, the error wraps
// [ipvs.ErrUnsupported].
func New(c dataplane.Config, o Options) (*Backend, error) {
	c.VirtualServers = true
	if o.NewTable == nil {
		o.NewTable = func(c dataplane.Config) (Table, error) { return nftables.New(c) }
	}
	table, err := o.NewTable(c)
	if err != nil {
		return nil, err
	}
	b := &Backend{config: c, options: o, table: table}
	if b.conn, err = ipvs.Dial(c.NetNS); err == nil {
		b.dummy, err = openDummy(c.NetNS)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if b.scheduler, err = parseScheduler(cmp.Or(o.Scheduler, defaultScheduler)); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs.scheduler: %w", err), b.Close())
	}
	b.reset()
	return b, nil
}

// Close implements dataplane.Dataplane.
func (b *Backend) Close() error {
	err := b.table.Close()
	if b.conn != nil {
		err = errors.Join(err, b.conn.Close())
	}
	if b.dummy != nil {
		b.dummy.close()
	}
	return err
}

// reset forgets the programmed content.
func (b *Backend) reset() {
	b.translation = newTranslation()
	b.servers = servers{scheduler: b.scheduler}
	b.drain = drains{}
}

// Reconcile implements dataplane.Dataplane. The virtual servers that the kernel has are
// compared one by one, so the connections of those that stay continue, even if another program has made them.
func (b *Backend) Reconcile(ctx context.Context, full *desired.Change) (stats dataplane.Stats, err error) {
	b.sequence.Begin()
	if err := b.prepareNode(ctx); err != nil {
		return stats, err
	}
	b.reset()
	p := plan{drain: b.drain}
	table := b.write(&p, full)
	if err := b.compare(ctx, &p); err != nil {
		return stats, err
	}
	addresses, err := b.dummy.compare(table.ClusterIPs.Added)
	if err != nil {
		return stats, err
	}
	return b.program(ctx, &p, func() (dataplane.Stats, error) {
		// The new table may leave to IPVS what the table of another mode has translated.
		if err := b.dummy.change(&desired.AddressChange{Added: addresses.Added}); err != nil {
			return dataplane.Stats{}, err
		}
		return b.table.Reconcile(ctx, table)
	}, func() error { return b.dummy.change(&desired.AddressChange{Removed: addresses.Removed}) })
}

// Apply implements dataplane.Dataplane. If it fails in the middle, only a part of the change
// is in effect until the next Reconcile.
func (b *Backend) Apply(ctx context.Context, change *desired.Change) (stats dataplane.Stats, err error) {
	if err := b.sequence.BeginApply(ctx, change); err != nil {
		return stats, fmt.Errorf("ipvs: %w", err)
	}
	p := plan{drain: b.drain}
	table := b.write(&p, change)
	return b.program(ctx, &p, func() (dataplane.Stats, error) { return b.table.Apply(ctx, table) },
		func() error { return b.dummy.change(&table.ClusterIPs) })
}

// write updates the records by a change. It returns the change of the table, and adds the steps
// for IPVS to a plan.
func (b *Backend) write(p *plan, change *desired.Change) *desired.Change {
	before := b.servers.sizes(change)
	b.servers.write(p, change)
	return b.translation.change(change, before, &b.servers)
}

// program carries out a plan around the change of the table.
func (b *Backend) program(ctx context.Context, p *plan, table func() (dataplane.Stats, error), addresses func() error) (stats dataplane.Stats, err error) {
	if err := b.execute(ctx, p.first); err != nil {
		return stats, err
	}
	if stats, err = table(); err != nil {
		return stats, err
	}
	stats.Elements += len(p.first) + len(p.last)
	if err := addresses(); err != nil {
		return stats, err
	}
	if err := b.execute(ctx, p.last); err != nil {
		return stats, err
	}
	b.sequence.Done()
	return stats, nil
}

// execute carries out requests. It goes on after the kernel has refused one, and returns the
// first refusals.
func (b *Backend) execute(ctx context.Context, steps []step) error {
	if len(steps) == 0 {
		return nil
	}
	requests := make([]ipvs.Request, len(steps))
	for i := range steps {
		requests[i] = steps[i].request
	}
	const most = 3
	var refused []error
	err := b.conn.Execute(ctx, requests, func(i int, err error) {
		if s := &steps[i]; !errors.Is(err, s.tolerate) && len(refused) < most {
			refused = append(refused, fmt.Errorf("programming Service %s: virtual server %s: %w", s.service, s.key, err))
		}
	})
	return errors.Join(append(refused, err)...)
}

// Cleanup implements dataplane.Dataplane.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	b.reset()
	if err := b.table.Cleanup(ctx); err != nil {
		return err
	}
	all, err := b.byAddress(ctx)
	if err != nil {
		return err
	}
	var steps []step
	for _, s := range all {
		if b.mayDelete(s.Key) {
			steps = append(steps, step{key: s.Key, request: ipvs.DeleteService(s.Key), tolerate: noService})
		}
	}
	return errors.Join(b.execute(ctx, steps), dataplane.Inside(b.config.NetNS, RestoreParameters), b.dummy.remove())
}

// byAddress lists the virtual servers by address.
func (b *Backend) byAddress(ctx context.Context) ([]ipvs.Service, error) {
	all, err := b.conn.Services(ctx)
	return slices.DeleteFunc(all, func(s ipvs.Service) bool { return s.Mark != 0 }), err
}

// mayDelete reports whether a virtual server of no frontend may be deleted.
func (b *Backend) mayDelete(k ipvs.Key) bool {
	return !slices.ContainsFunc(b.options.Exclude, func(p netip.Prefix) bool { return p.Contains(k.Addr) })
}

// Probe implements dataplane.Prober.
func (b *Backend) Probe(ctx context.Context) ([]dataplane.Missing, error) {
	return b.ProbeWith(ctx, b.table.Probe)
}

// ProbeWith is Probe with another probe of the table.
func (b *Backend) ProbeWith(ctx context.Context, table func(context.Context) ([]dataplane.Missing, error)) ([]dataplane.Missing, error) {
	var err error
	if b.schedulers, err = b.conn.Schedulers(ctx); err != nil {
		return nil, err
	}
	if _, err := b.Scheduler(b.scheduler.String()); err != nil {
		return nil, fmt.Errorf("ipvs.scheduler: %w", err)
	}
	missing, err := table(ctx)
	if err != nil || slices.ContainsFunc(missing, func(m dataplane.Missing) bool { return m.Family == desired.IPv6 }) {
		return missing, err
	}
	err = dataplane.Inside(b.config.NetNS, func() error { _, err := os.Stat(procIPv6); return err })
	if errors.Is(err, fs.ErrNotExist) {
		return append(missing, dataplane.Missing{Family: desired.IPv6, Feature: "addresses", Err: err, Remedy: "needs IPv6, which ipv6.disable=1 switches off"}), nil
	}
	return missing, err
}

// parseScheduler parses a scheduler. Those that hash have their fallback, in any case: a
// destination with weight 0 is one that leaves, and without the fallback they refuse new
// connections from its clients until it has left (kubernetes #138688).
func parseScheduler(text string) (ipvs.Scheduler, error) {
	s, err := ipvs.ParseScheduler(text)
	if s.Name == "sh" || s.Name == "mh" {
		s.Flags |= ipvs.Scheduler1
	}
	return s, err
}

// Scheduler is a [desired.Config.Scheduler]. It refuses schedulers that Probe has not found.
func (b *Backend) Scheduler(text string) (string, error) {
	s, err := parseScheduler(text)
	switch {
	case err != nil:
		return "", err
	case b.schedulers != nil && !slices.Contains(b.schedulers, s.Name):
		return "", fmt.Errorf("%q is not a scheduler that this kernel has: %s", s.Name, strings.Join(b.schedulers, ", "))
	case s == b.scheduler:
		return "", nil
	}
	return s.String(), nil
}

// Supports is a [desired.Config.Supports].
func (b *Backend) Supports(a desired.Algorithm) error { return dataplane.OnlyRandom(a) }

// Table is the dataplane of the table.
func (b *Backend) Table() Table { return b.table }

// drainTimeout is how long a destination without weight may have connections.
const drainTimeout = 15 * time.Minute
