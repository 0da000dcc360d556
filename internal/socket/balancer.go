// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"golang.org/x/sys/unix"
)

// Options configure a Balancer. The zero value is for the namespaces of the calling thread.
type Options struct {
	NetNS    int           // file descriptor of the node's network namespace
	CGroup   string        // of version 2, whose processes are served; found if ""
	Pods     string        // folder with the pods' network namespaces; [PodNamespaces] if ""
	Selected bool          // of pods, serves only those with an address in desired.DirectIPs
	lease    time.Duration // [Lease] if 0
}

// Lease is how long the programs act without a Balancer whose Run runs. Then they leave all connections to the
// dataplane, whose rules are not older than their maps.
const Lease = 30 * time.Second

// Balancer has the programs and what they know. Its methods are safe for concurrent use.
type Balancer struct {
	options Options
	dir     string
	cgroup  uint64 // ID of Options.CGroup

	mu         sync.Mutex
	objects    programObjects
	content    *content
	links      map[string]link.Link // by name of the program; empty unless the maps have the content
	namespaces map[namespace]*client
	selected   map[netip.Addr]bool // desired.DirectIPs
}

// pins is the owner of the folder of pins.
const pins = "slipstream-sockets"

// New finds the cgroup and probes what the programs need: CAP_SYS_ADMIN (or CAP_BPF and
// CAP_NET_ADMIN), cgroup v2 and Linux 5.14. It attaches nothing, and reads which pods there are. The error is one line that says
// what is missing, as a [feature.Missing] if the kernel refuses the programs.
func New(o Options) (*Balancer, error) {
	b, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := bpffs.Mount(); err != nil {
		return nil, fmt.Errorf("BPF file system: %w", err)
	}
	if _, err := os.Stat(b.dir); errors.Is(err, os.ErrNotExist) { // what an earlier Balancer has pinned elsewhere comes first at connect()
		if err := Remove(o.NetNS); err != nil {
			return nil, err
		}
	}
	objects, err := b.load(newContent(), ebpf.PinNone)
	if err != nil {
		return nil, err
	}
	return b, errors.Join(objects.Close(), b.scan())
}

// prepare makes a Balancer that has loaded nothing, and knows no pods yet.
func prepare(o Options) (*Balancer, error) {
	b := &Balancer{options: o, links: map[string]link.Link{}, namespaces: map[namespace]*client{}, selected: map[netip.Addr]bool{}}
	b.options.lease, b.options.Pods = cmp.Or(o.lease, Lease), cmp.Or(o.Pods, PodNamespaces)
	if err := b.locate(); err != nil {
		return nil, err
	}
	own, err := cookieOf(o.NetNS)
	b.namespaces[namespace{}] = &client{cookie: own, served: true}
	return b, err
}

// locate finds the cgroup and the folder of pins.
func (b *Balancer) locate() (err error) {
	if b.dir, err = bpffs.Folder(pins, b.options.NetNS); err != nil {
		return err
	}
	if b.options.CGroup, err = findCGroup(b.options.CGroup); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(b.options.CGroup, &stat); err != nil {
		return fmt.Errorf("cgroup %s: %w", b.options.CGroup, err)
	}
	b.cgroup = stat.Ino
	return nil
}

// Sizes of maps: twice what the content needs, and at least these. A full map costs a Reconcile.
const (
	fewFrontends = 1 << 14
	fewEndpoints = 1 << 16
	addresses    = 1 << 10
	netnsMost    = 1 << 12
)

// load loads the programs with maps for a content. What sockets remember, and the counter, outlive
// the programs if they are pinned.
func (b *Balancer) load(c *content, pin ebpf.PinType) (objects programObjects, err error) {
	spec, err := bpffs.Program(compiled)
	if err != nil {
		return objects, err
	}
	spec.Maps["lease"].MaxEntries = 1
	spec.Maps["frontends"].MaxEntries = uint32(max(fewFrontends, 2*c.frontends))
	spec.Maps["pools"].MaxEntries = uint32(max(fewFrontends, 2*int(c.numbered)))
	spec.Maps["endpoints"].MaxEntries = uint32(max(fewEndpoints, 2*c.slots))
	spec.Maps["node_addresses"].MaxEntries = addresses
	spec.Maps["namespaces"].MaxEntries = netnsMost
	spec.Maps["peers"].MaxEntries = 0 // as the kernel wants it
	spec.Maps["peers"].Pinning, spec.Maps["connections"].Pinning = pin, pin
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: b.dir}}
	err = spec.LoadAndAssign(&objects, options)
	if errors.Is(err, ebpf.ErrMapIncompatible) { // of another version
		if err = errors.Join(os.RemoveAll(b.dir), os.MkdirAll(b.dir, 0o700)); err == nil {
			err = spec.LoadAndAssign(&objects, options)
		}
	}
	if err != nil {
		return objects, feature.Missing{Feature: "BPF programs at cgroups", Remedy: "needs Linux 5.14 with CONFIG_CGROUP_BPF, and CAP_BPF", Err: err}
	}
	return objects, nil
}

// renew renews the lease.
func (b *Balancer) renew() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.objects.Lease == nil {
		return nil // Reconcile does it
	}
	return b.extend(b.objects.Lease)
}

func (b *Balancer) extend(lease *ebpf.Map) error {
	return lease.Put(uint32(0), bpffs.Now()+uint64(b.options.lease))
}

// Stats are what a Balancer has done and knows.
type Stats struct {
	CGroup      string `json:"cgroup"`      // whose processes are served
	Attached    bool   `json:"attached"`    // as of the last Reconcile
	Namespaces  int    `json:"namespaces"`  // network namespaces that are served: the node's and pods'
	Connections uint64 `json:"connections"` // that were connected straight to an endpoint, since the first Balancer that was not removed
}

// Stats returns the current numbers.
func (b *Balancer) Stats() (s Stats, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s = Stats{CGroup: b.options.CGroup, Attached: len(b.links) > 0}
	for _, c := range b.namespaces {
		if c.served {
			s.Namespaces++
		}
	}
	if !s.Attached {
		return s, nil
	}
	var each []uint64
	err = b.objects.Connections.Lookup(uint32(0), &each)
	for _, n := range each {
		s.Connections += n
	}
	return s, err
}

// Connects reports whether connections of local clients to a frontend go straight to an endpoint. pod
// is the address of the client if it is a pod, and not valid otherwise.
func (b *Balancer) Connects(f *desired.Frontend, pod netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.options.Selected && pod.IsValid() && !b.selected[pod] {
		return false
	}
	if len(b.links) == 0 || f.Protocol != desired.TCP || b.content.poolOf(f) == 0 || b.content.addresses[f.Addr()] == servedByNode {
		return false
	}
	p := b.content.pools.Get(f.Pool)
	return !p.left && len(p.Slots) > 0
}
