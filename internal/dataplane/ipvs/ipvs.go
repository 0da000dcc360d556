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
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
)

// Options are the settings of IPVS mode (kube-proxy's section "ipvs").
type Options struct {
	Scheduler string         // as in [ipvs.ParseScheduler]; "" is rr
	Exclude   []netip.Prefix // virtual servers in these ranges belong to other programs
	Timeouts  ipvs.Timeouts  // of connections; 0 leaves the kernel's
	StrictARP bool           // arp_ignore=1 and arp_announce=2

	// SyncPeriod is the time in which Check compares all virtual servers; 30 seconds if 0.
	SyncPeriod time.Duration
}

// Dataplane is the IPVS dataplane. It needs CONFIG_IP_VS with CONFIG_IP_VS_NFCT, what its table
// needs, and CAP_NET_ADMIN in the network namespace.
type Dataplane struct {
	config  dataplane.Config
	options Options
	table   *nftables.Dataplane
	conn    *ipvs.Conn
	dummy   *dummy

	scheduler  ipvs.Scheduler // of the options
	schedulers []string       // those that the kernel has; nil before Probe

	servers  servers
	drain    drains
	refused  refusals
	reported map[desired.Problem]bool // of refused

	sequence dataplane.Sequence

	nextSample      int           // of Check
	sampled, listed time.Time     // when Check last compared some virtual servers, and listed all
	listing         time.Duration // how long that took
	others          int           // virtual servers of other programs for IPv4 that the last Check found
}

var (
	_ dataplane.Dataplane = (*Dataplane)(nil)
	_ dataplane.Prober    = (*Dataplane)(nil)
	_ dataplane.Reader    = (*Dataplane)(nil)
	_ dataplane.FlowEnder = (*Dataplane)(nil)
)

// New opens netlink sockets. It programs nothing. Without IPVS in the kernel, the error wraps
// a feature.Missing.
func New(c dataplane.Config, o Options) (*Dataplane, error) {
	c.IPVS = true
	table, err := nftables.New(c)
	if err != nil {
		return nil, err
	}
	b := &Dataplane{config: c, options: o, table: table}
	if b.conn, err = ipvs.Dial(c.NetNS); err == nil {
		b.dummy, err = openDummy(c.NetNS)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	const defaultScheduler = "rr" // kube-proxy's
	if b.scheduler, err = parseScheduler(cmp.Or(o.Scheduler, defaultScheduler)); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs.scheduler: %w", err), b.Close())
	}
	b.reset()
	return b, nil
}

// Close implements dataplane.Dataplane.
func (b *Dataplane) Close() error {
	err := b.table.Close()
	if b.conn != nil {
		err = errors.Join(err, b.conn.Close())
	}
	if b.dummy != nil {
		err = errors.Join(err, b.dummy.close())
	}
	return err
}

// reset forgets the programmed content.
func (b *Dataplane) reset() {
	b.servers = servers{scheduler: b.scheduler, addresses: map[netip.Addr]bool{}}
	b.drain = drains{}
	b.refused = refusals{}
	b.sampled, b.others = time.Now(), 0
}

// Reconcile implements dataplane.Dataplane. The virtual servers that the kernel has are
// compared one by one, so the connections of those that stay continue, even if another program has made them.
func (b *Dataplane) Reconcile(ctx context.Context, full *desired.Change) (stats dataplane.Stats, err error) {
	b.sequence.Begin()
	if err := b.prepareNode(ctx); err != nil {
		return stats, err
	}
	b.reset()
	p := plan{drain: b.drain, refused: b.refused}
	b.servers.write(&p, full)
	if err := b.compare(ctx, &p); err != nil {
		return stats, err
	}
	addresses, err := b.dummy.compare(full.Sets[desired.ClusterIPs].Added)
	if err != nil {
		return stats, err
	}
	return b.program(ctx, &p, func() (dataplane.Stats, error) {
		// The new table may leave to IPVS what the table of another mode has translated.
		if err := b.changeAddresses(ctx, &desired.SetChange{Added: addresses.Added}); err != nil {
			return dataplane.Stats{}, err
		}
		return b.table.Reconcile(ctx, full)
	}, func() error { return b.changeAddresses(ctx, &desired.SetChange{Removed: addresses.Removed}) })
}

// Apply implements dataplane.Dataplane. If it fails in the middle, only a part of the change
// is in effect until the next Reconcile.
func (b *Dataplane) Apply(ctx context.Context, change *desired.Change) (stats dataplane.Stats, err error) {
	if err := b.sequence.BeginApply(ctx, change); err != nil {
		return stats, fmt.Errorf("ipvs: %w", err)
	}
	p := plan{drain: b.drain, refused: b.refused}
	b.servers.write(&p, change)
	return b.program(ctx, &p, func() (dataplane.Stats, error) { return b.table.Apply(ctx, change) },
		func() error { return b.changeAddresses(ctx, &change.Sets[desired.ClusterIPs]) })
}

// program carries out a plan around the change of the table.
func (b *Dataplane) program(ctx context.Context, p *plan, table func() (dataplane.Stats, error), addresses func() error) (stats dataplane.Stats, err error) {
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
	stats.Refused = b.newProblems()
	return stats, nil
}

// execute carries out requests. It goes on after one has failed. What the kernel refuses is left
// out. It returns the first of the other failures.
func (b *Dataplane) execute(ctx context.Context, steps []step) error {
	if len(steps) == 0 {
		return nil
	}
	requests := make([]ipvs.Request, len(steps))
	for i := range steps {
		requests[i] = steps[i].request
	}
	const most = 3
	var failed []error
	err := b.conn.Execute(ctx, requests, func(i int, err error) {
		s := &steps[i]
		if !errors.Is(err, s.tolerate) && !b.refused.note(s, err) && len(failed) < most {
			failed = append(failed, fmt.Errorf("programming Service %s: virtual server %s: %w", s.service, s.key, err))
		}
	})
	return errors.Join(append(failed, err)...)
}

// Cleanup implements dataplane.Dataplane.
func (b *Dataplane) Cleanup(ctx context.Context) error {
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
	for key := range all {
		may, failed := b.conn.MayBeProxys(ctx, key, b.options.Exclude)
		if err = errors.Join(err, failed); may {
			steps = append(steps, step{key: key, request: ipvs.DeleteService(key), tolerate: noService})
		}
	}
	return errors.Join(err, b.execute(ctx, steps), dataplane.Inside(b.config.NetNS, RestoreParameters), b.dummy.remove())
}

// byAddress returns the virtual servers by address.
func (b *Dataplane) byAddress(ctx context.Context) (map[ipvs.Key]ipvs.Service, error) {
	all, err := b.conn.Services(ctx)
	servers := make(map[ipvs.Key]ipvs.Service, len(all))
	for _, s := range all {
		if s.Mark == 0 {
			servers[s.Key] = s
		}
	}
	return servers, err
}

// Probe implements dataplane.Prober.
func (b *Dataplane) Probe(ctx context.Context) ([]dataplane.Missing, error) {
	var err error
	if b.schedulers, err = b.conn.Schedulers(ctx); err != nil {
		return nil, err
	}
	if _, err := b.Scheduler(b.scheduler.String(), false); err != nil {
		return nil, fmt.Errorf("ipvs.scheduler: %w", err)
	}
	missing, err := b.table.Probe(ctx)
	if err != nil || slices.ContainsFunc(missing, func(m dataplane.Missing) bool { return m.Family == desired.IPv6 }) {
		return missing, err
	}
	err = dataplane.Inside(b.config.NetNS, func() error { _, err := os.Stat(procIPv6); return err })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return append(missing, dataplane.Missing{Family: desired.IPv6, Missing: feature.Missing{Feature: "addresses", Err: err, Remedy: "needs IPv6, which ipv6.disable=1 switches off"}}), nil
	case err != nil:
		return missing, err
	}
	refused, err := b.conn.Try(ctx, b.scheduler.Name, true)
	if err == nil && refused != nil {
		missing = append(missing, dataplane.Missing{Family: desired.IPv6, Missing: feature.Missing{Feature: "virtual servers", Err: refused, Remedy: "needs CONFIG_IP_VS_IPV6"}})
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

// Scheduler is a [desired.Config.Scheduler]. It refuses schedulers that Probe has not found. wrr and wlc are
// what rr and lc are with equal weights.
func (b *Dataplane) Scheduler(text string, weighted bool) (string, error) {
	s, err := b.scheduler, error(nil)
	if text != "" {
		s, err = parseScheduler(text)
	}
	has := func(name string) bool { return b.schedulers == nil || slices.Contains(b.schedulers, name) }
	if weighted && (s.Name == "rr" || s.Name == "lc") && has("w"+s.Name) {
		s.Name = "w" + s.Name
	}
	switch {
	case err != nil:
		return "", err
	case !has(s.Name):
		return "", fmt.Errorf("%q is not a scheduler that this kernel has: %s", s.Name, strings.Join(b.schedulers, ", "))
	case s == b.scheduler:
		return "", nil
	}
	return s.String(), nil
}

// Supports is a [desired.Config.Supports].
func (b *Dataplane) Supports(a desired.Algorithm) error { return dataplane.OnlyRandom(a) }

// Describe implements dataplane.Dataplane. A connection of this node to a ClusterIP can have a
// Service's address as its source, so the table masquerades it.
func (b *Dataplane) Describe(f *desired.Frontend, id desired.PoolID) (d dataplane.Detail) {
	if d = b.table.Describe(f, id); id == f.VirtualServer() {
		d = dataplane.Detail{Object: "virtual server " + f.String(), Scheduler: cmp.Or(f.Scheduler, b.scheduler.String())}
	}
	d.MasqueradesNode = f.Kind == desired.ClusterIP
	return d
}

// Table is the dataplane of the table.
func (b *Dataplane) Table() *nftables.Dataplane { return b.table }
