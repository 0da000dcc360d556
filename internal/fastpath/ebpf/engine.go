// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	links "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Engine is the program in one network namespace, and what it knows of connections. Its methods
// are safe for concurrent use.
type Engine struct {
	netns   int
	dir     string
	objects programObjects
	waiting *ringbuf.Reader // flows that wait
	ct      *ctnetlink.Conn
	route   *links.Handle
	news    *netlink.Conn // notifications of tc
	tc      bool          // the kernel has no tcx
	lease   time.Duration
	learnID ebpf.ProgramID
	ipsec   bool                // there are IPsec policies, or may be
	reads   func() map[int]bool // of OpenToRead

	mu       sync.Mutex // of what follows
	attached map[place]attachment
	part     map[int]bool  // interfaces that take part: their packets may be forwarded
	shown    map[int]uint8 // what the program knows of these: peer
	veths    map[int]bool  // interfaces whose other end is in another network namespace
	queues   map[int]bool  // interfaces with a queueing discipline
}

// Stats are numbers for metrics, since Open.
type Stats struct {
	Added   uint64 // connections
	Refused uint64 // tries, for want of space
}

// Idle is how long flows live without packets.
const Idle = 30 * time.Second

// pins is the owner of the folder of pins.
const pins = "slipstream-fastpath"

// Open loads the program, and adopts the flows and interfaces of an earlier Engine that was not
// removed. It needs CAP_SYS_ADMIN. With tc it uses filters of tc even if the kernel has tcx. The lease
// is [Lease], except in tests. The error is one line that says what the kernel lacks.
func Open(ns int, tc bool, lease time.Duration) (e *Engine, err error) {
	e = &Engine{netns: ns, tc: tc, lease: lease, attached: map[place]attachment{}, part: map[int]bool{}, shown: map[int]uint8{}, veths: map[int]bool{}}
	defer func() {
		if err != nil {
			// Nobody would apply policies to flows of an earlier Engine. If they cannot be deleted, their lease ends.
			_ = e.Delete(func(*Flow) bool { return true })
			err = errors.Join(err, e.Close())
			_ = Remove(ns)
		}
	}()
	if e.dir, err = bpffs.Folder(pins, ns); err != nil {
		return e, err
	}
	if err = bpffs.Mount(); err == nil {
		err = os.MkdirAll(e.dir, 0o700)
	}
	if err != nil {
		return e, fmt.Errorf("BPF file system: %w", err)
	}
	if e.ct, err = ctnetlink.Dial(ns); err != nil {
		return e, err
	}
	// Any request has the kernel load the module of conntrack, whose functions the program calls.
	_, _ = e.ct.Get(context.Background(), ctnetlink.Tuple{Protocol: unix.IPPROTO_UDP})
	for _, do := range []func() error{e.load, e.setTimeouts, e.dial, e.probe, e.adopt} {
		if err = do(); err != nil {
			return e, err
		}
	}
	_ = e.watchIPsec() // after an error nothing is offloaded, and Run repeats it
	return e, e.renew()
}

func (e *Engine) dial() (err error) {
	e.route, err = links.NewHandleAt(sock.Namespace(e.netns), unix.NETLINK_ROUTE, unix.NETLINK_XFRM)
	if errors.Is(err, unix.EPROTONOSUPPORT) { // it is the kernel that has no IPsec
		e.route, err = links.NewHandleAt(sock.Namespace(e.netns), unix.NETLINK_ROUTE)
	}
	if err == nil {
		e.news, err = dialNews(e.netns)
	}
	return err
}

// OpenToRead opens an Engine of which only Filters, Outdated, Detached, Verify and Close may be called. It has loaded nothing, and Detached is about
// the interfaces that take part according to another one, which part returns.
func OpenToRead(ns int, tc bool, lease time.Duration, part func() map[int]bool) (e *Engine, err error) {
	e = &Engine{netns: ns, tc: tc, lease: lease, attached: map[place]attachment{}, veths: map[int]bool{}, reads: part}
	if e.dir, err = bpffs.Folder(pins, ns); err != nil {
		return e, err
	}
	return e, e.dial()
}

// readAttached reads what another Engine has attached at the ingress.
func (e *Engine) readAttached() {
	for index := range e.part {
		at := place{index: index}
		pin := filepath.Join(e.dir, linkPrefix+strconv.Itoa(index))
		if f := (&filter{newFilter(at, -1), e.route, at}); f.intact() {
			e.attached[at] = f
		} else if l, err := link.LoadPinnedLink(pin, nil); err == nil {
			e.attached[at] = &tcxLink{l, e, at, pin}
		}
	}
}

// load loads the program and opens or makes the map.
func (e *Engine) load() error {
	spec, err := loadProgram()
	if err != nil {
		return err
	}
	spec.Maps["flows"].Pinning = ebpf.PinByName
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: e.dir}}
	err = spec.LoadAndAssign(&e.objects, options)
	if errors.Is(err, ebpf.ErrMapIncompatible) { // of another version
		if err = os.RemoveAll(e.dir); err == nil {
			err = os.MkdirAll(e.dir, 0o700)
		}
		if err == nil {
			err = spec.LoadAndAssign(&e.objects, options)
		}
	}
	if err != nil {
		return fmt.Errorf("BPF program (Linux 6.1 with CONFIG_DEBUG_INFO_BTF and conntrack): %w", err)
	}
	info, err := e.objects.Learn.Info()
	if err == nil {
		e.learnID, _ = info.ID()
		e.waiting, err = ringbuf.NewReader(e.objects.Waiting)
	}
	return err
}

// Lease is how long the program acts without an Engine whose Run runs.
const Lease = time.Minute

// renew renews the lease. If it had ended, the program has missed packets, and TCP's numbers are out of date. It ends
// the lease while there are IPsec policies.
func (e *Engine) renew() (err error) {
	var until uint64
	next := bpffs.Now() + uint64(e.lease)
	if e.ipsec {
		next = 0
		err = e.objects.Lease.Set(next)
	}
	if e.objects.Lease.Get(&until) != nil || e.ipsec || until != 0 && until < bpffs.Now() {
		err = errors.Join(err, e.Delete(func(*Flow) bool { return true }))
	}
	return errors.Join(err, e.objects.Lease.Set(next))
}

// setTimeouts has the program use the timeouts of conntrack as they are now.
func (e *Engine) setTimeouts() error {
	return dataplane.Inside(e.netns, func() error {
		_, udp := sysctl.UDPTimeouts()
		return errors.Join(e.objects.TcpTimeout.Set(milliseconds(sysctl.TCPTimeout())), e.objects.UdpTimeout.Set(milliseconds(udp)))
	})
}

func milliseconds(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), math.MaxUint32)) }

// probe attaches the program to the loopback interface for a moment.
func (e *Engine) probe() error {
	const loopback = 1
	at := place{index: loopback}
	if !e.tc {
		l, err := e.attachTCX(at, e.objects.Forward)
		if err == nil {
			return l.Close()
		}
		if e.tc = errors.Is(err, link.ErrNotSupported); !e.tc {
			return fmt.Errorf("BPF program at the ingress of an interface (tcx): %w", err)
		}
	}
	err := e.route.QdiscAdd(newClsact(loopback))
	if err == nil {
		defer func() { _ = e.route.QdiscDel(newClsact(loopback)) }()
	}
	f, err := e.attachTC(at, e.objects.Forward)
	if err != nil {
		return fmt.Errorf("BPF program at the ingress of an interface (tcx, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF): %w", err)
	}
	return f.detach()
}

const linkPrefix = "interface-"

func (e *Engine) flowsPin() string { return filepath.Join(e.dir, "flows") }

// adopt takes over the links and filters of an earlier Engine, with its own program. Until SetInterfaces all their
// interfaces take part: those that did not have no flows.
func (e *Engine) adopt() error {
	if e.tc {
		all, err := filtered(e.route)
		for _, at := range all {
			e.part[at.index] = true
		}
		err = errors.Join(err, e.show())
		for _, at := range all {
			f, e2 := e.attachTC(at, e.program(at, true))
			if e2 != nil {
				return e2
			}
			e.attached[at] = f
		}
		return err
	}
	pins, err := filepath.Glob(filepath.Join(e.dir, linkPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range pins {
		at := place{}
		at.index, _ = strconv.Atoi(filepath.Base(path)[len(linkPrefix):])
		e.part[at.index] = true
		l, err := link.LoadPinnedLink(path, nil)
		if err == nil {
			if err = errors.Join(e.show(), l.Update(e.objects.Forward)); err == nil {
				e.attached[at] = &tcxLink{l, e, at, path}
				continue
			}
			_ = l.Close()
		}
		delete(e.part, at.index)
		if err := os.Remove(path); err != nil { // the interface does not exist any more
			return err
		}
	}
	return nil
}

// Detached returns the interfaces, by index, from which another program has detached this one, after
// which it has attached its own, or of which it has removed what is pinned. They may also have been
// deleted. SetInterfaces attaches it again, as the last one.
func (e *Engine) Detached() map[int]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reads != nil {
		e.part = e.reads()
		e.readAttached()
	}
	_, err := os.Stat(e.flowsPin())
	all := map[int]bool{}
	for index, takesPart := range e.part {
		if takesPart && (err != nil || e.attached[place{index: index}] == nil) {
			all[index] = true
		}
	}
	for at, a := range e.attached {
		if e.part[at.index] && !a.intact() {
			all[at.index] = true
		}
	}
	return all
}

// SetInterfaces has the interfaces, by index, take part that are true, and guards those that are false: there the program
// drops forged ends of offloaded connections. Flows of interfaces that do not take part any more end. After an error, the
// other interfaces are done.
func (e *Engine) SetInterfaces(all map[int]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.setInterfaces(all)
}

func (e *Engine) setInterfaces(all map[int]bool) error {
	var errs []error
	less := false
	for at, a := range e.attached {
		takesPart, stays := all[at.index]
		less = less || !takesPart && (e.part[at.index] || at.egress)
		if p := e.program(at, takesPart); stays && p != nil && a.intact() && (e.part[at.index] == takesPart || a.use(p) == nil) {
			continue
		}
		errs = append(errs, a.detach())
		delete(e.attached, at)
	}
	clear(e.part)
	// Another program may have removed the folder.
	errs = append(errs, os.MkdirAll(e.dir, 0o700))
	if _, err := os.Stat(e.flowsPin()); errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, e.objects.Flows.Unpin(), e.objects.Flows.Pin(e.flowsPin()))
	}
	for index, takesPart := range all {
		for _, egress := range []bool{false, true} {
			at := place{index, egress}
			p := e.program(at, takesPart)
			a, err := e.attached[at], error(nil)
			if p != nil && a == nil {
				a, err = e.attach(at, p)
			}
			if errors.Is(err, unix.ENODEV) || err != nil && (!takesPart || e.tc && egress) {
				// It was deleted meanwhile, which is reported as well; its filters are shared with other interfaces; or it has
				// the qdisc ingress, and connections are learned at the other interface.
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("BPF program at interface %d: %w", index, err))
				break
			}
			if p != nil {
				e.attached[at], e.part[index] = a, takesPart
			}
		}
	}
	errs = append(errs, e.show())
	if less {
		errs = append(errs, e.Delete(func(f *Flow) bool { return !all[f.In] || !all[f.Out] || !all[f.back] }))
	}
	return errors.Join(errs...)
}

// program is the one for a place at an interface that takes part or does not; nil is none.
func (e *Engine) program(at place, takesPart bool) *ebpf.Program {
	switch {
	case at.egress && takesPart:
		return e.objects.Learn
	case at.egress:
		return nil
	case takesPart:
		return e.objects.Forward
	}
	return e.objects.Guard
}

// Keep is SetInterfaces, but no further interfaces take part.
func (e *Engine) Keep(all map[int]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := map[int]bool{}
	less := false
	for at := range e.attached {
		kept[at.index] = all[at.index] && e.part[at.index]
		less = less || e.part[at.index] && !kept[at.index]
	}
	if !less {
		return nil
	}
	return e.setInterfaces(kept)
}

// Stats returns the current numbers.
func (e *Engine) Stats() (s Stats, err error) {
	return s, errors.Join(e.objects.Added.Get(&s.Added), e.objects.Refused.Get(&s.Refused))
}

// Run offloads connections and deletes idle flows, until ctx ends.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { e.listen(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	refused := uint64(0)
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.mu.Lock()
		err := e.show()
		e.mu.Unlock()
		s, _ := e.Stats()
		err = errors.Join(err, e.watchIPsec(), e.renew())
		const sweepEvery = 10 * time.Second
		if err == nil && (s.Refused > refused || time.Since(last) >= sweepEvery) { // many may have ended
			last, refused = time.Now(), s.Refused
			err = errors.Join(e.setTimeouts(), e.Sweep(Idle))
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Fast path: flows could not be maintained")
		}
	}
}

// Adopted reports whether there are flows.
func (e *Engine) Adopted() bool {
	var key programTuple
	return !errors.Is(e.objects.Flows.NextKey(nil, &key), ebpf.ErrKeyNotExist)
}

// watchIPsec has no connections offloaded while there are IPsec policies, which the program does
// not know, or while they cannot be listed.
func (e *Engine) watchIPsec() error {
	policies, err := e.route.XfrmPolicyList(links.FAMILY_ALL)
	if errors.Is(err, unix.EPROTONOSUPPORT) { // the kernel has no IPsec
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("no connections are offloaded while IPsec policies cannot be listed: %w", err)
	}
	e.ipsec = err != nil || len(policies) > 0 || e.dropsUnnamed()
	return err
}

// dropsUnnamed reports whether packets that no IPsec policy names are dropped (Linux 5.15).
func (e *Engine) dropsUnnamed() (drops bool) {
	const getDefault, block = 0x28, 1 // XFRM_MSG_GETDEFAULT, XFRM_USERPOLICY_BLOCK
	r := nl.NewNetlinkRequest(getDefault, 0)
	r.AddRawData(make([]byte, 3)) // for incoming, forwarded and outgoing packets
	_ = dataplane.Inside(e.netns, func() error {
		answers, err := r.Execute(unix.NETLINK_XFRM, 0) // an error of a kernel that has no such default
		drops = err == nil && slices.ContainsFunc(answers, func(a []byte) bool { return slices.Contains(a, block) })
		return nil
	})
	return drops
}

// Sweep deletes the flows of connections that had no packet for a time, and counts the others.
func (e *Engine) Sweep(idle time.Duration) error {
	at := bpffs.Now()
	counts := map[uint32]uint32{}
	var old []programTuple
	err := elements(e.objects.Flows, func(key *programTuple, f *programFlow) {
		if f.Checked+uint64(idle) < at {
			var other programTuple
			var back programFlow
			other.set(reversed(f.To.get()))
			if e.objects.Flows.Lookup(&other, &back) != nil || back.Checked+uint64(idle) < at {
				old = append(old, *key, other)
				return
			}
		}
		if f.Reply == 0 {
			counts[f.In]++
		}
	})
	err = errors.Join(err, deleteKeys(e.objects.Flows, old))
	e.mu.Lock()
	defer e.mu.Unlock()
	for index, peer := range e.shown {
		i := programInterface{Connections: counts[uint32(index)], Peer: peer}
		err = errors.Join(err, e.objects.Interfaces.Put(uint32(index), &i))
	}
	return err
}

// Close closes the Engine. The program and its flows remain in the kernel.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, a := range e.attached {
		errs = append(errs, a.Close())
	}
	e.attached = map[place]attachment{}
	errs = append(errs, e.objects.Close())
	if e.ct != nil {
		errs = append(errs, e.ct.Close())
	}
	if e.waiting != nil {
		errs = append(errs, e.waiting.Close())
	}
	if e.news != nil {
		errs = append(errs, e.news.Close())
	}
	if e.route != nil {
		e.route.Close()
	}
	return errors.Join(errs...)
}

// Remove removes what an Engine that is closed has left in a network namespace. It does nothing
// if there is nothing.
func Remove(ns int) error {
	dir, err := bpffs.Folder(pins, ns)
	if err != nil {
		return err
	}
	return errors.Join(bpffs.RemoveFolder(dir), removeFilters(ns), removeUnseen(ns))
}
