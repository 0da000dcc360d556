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
	"strconv"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	links "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Engine is the program in one network namespace, and what it knows of connections. Its methods
// are safe for concurrent use.
type Engine struct {
	netns   int
	dir     string
	objects programObjects
	log     *netlink.Conn
	ct      *ctnetlink.Conn
	route   *links.Handle
	news    *netlink.Conn // notifications of tc
	tc      bool          // the kernel has no tcx
	lease   time.Duration

	mu       sync.Mutex
	attached map[int]attachment // by interface
	part     map[int]bool       // interfaces that take part: their packets may be forwarded
	peers    map[int]uint8      // of interfaces, not older than a second
	queues   map[int]bool       // interfaces with a queueing discipline
	used     map[int]bool       // interfaces whose egress packets have to pass
	ipsec    bool               // there are IPsec policies, or may be
	tries    map[uint32]try     // of connections, by the number of the conntrack entry
	refused  []Refused
	flows    map[uint32]int // how many connections come from an interface, at least
	counted  uint64         // when it was exact, by now
	stats    Stats
}

// Stats are numbers for metrics, since Open.
type Stats struct {
	Added   uint64 // connections
	Refused uint64 // connections, as the map was full
}

// Idle is how long flows live without packets.
const Idle = 30 * time.Second

const sweepEvery = 10 * time.Second

// pins is the owner of the folder of pins.
const pins = "slipstream-fastpath"

// Open loads the program, and adopts the flows and interfaces of an earlier Engine that was not
// removed. It needs CAP_SYS_ADMIN. With tc it uses filters of tc even if the kernel has tcx. The lease
// is [Lease], except in tests. The error is one line that says what the kernel lacks.
func Open(ns int, tc bool, lease time.Duration) (e *Engine, err error) {
	e = &Engine{netns: ns, tc: tc, lease: lease, attached: map[int]attachment{}, part: map[int]bool{}, peers: map[int]uint8{}, tries: map[uint32]try{}, flows: map[uint32]int{}}
	defer func() {
		if err != nil {
			// Nobody would apply policies to flows of an earlier Engine. If they cannot be deleted, their lease ends.
			_ = e.delete(func(*Flow) bool { return true })
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
	if err = e.load(); err == nil {
		err = e.setTimeouts()
	}
	if err != nil {
		return e, err
	}
	if e.route, err = links.NewHandleAt(namespace(ns), unix.NETLINK_ROUTE, unix.NETLINK_XFRM); err != nil {
		if !errors.Is(err, unix.EPROTONOSUPPORT) { // it is the kernel that has no IPsec
			return e, err
		}
		if e.route, err = links.NewHandleAt(namespace(ns), unix.NETLINK_ROUTE); err != nil {
			return e, err
		}
	}
	if e.news, err = dialNews(ns); err != nil {
		return e, err
	}
	if err = e.probe(); err != nil {
		return e, err
	}
	if err = e.adopt(); err != nil {
		return e, err
	}
	_ = e.watchIPsec() // after an error nothing is offloaded, and Run repeats it
	if err = e.renew(); err != nil {
		return e, err
	}
	e.log, err = dialLog(ns)
	return e, err
}

func namespace(ns int) netns.NsHandle {
	if ns == 0 {
		return netns.None()
	}
	return netns.NsHandle(ns)
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
	return nil
}

// Lease is how long the program acts without an Engine whose Run runs.
const Lease = time.Minute

// renew renews the lease. If it had ended, the program has missed packets, and TCP's numbers are out of date.
func (e *Engine) renew() (err error) {
	var until uint64
	if err = e.objects.Lease.Get(&until); err == nil && until != 0 && until < now() {
		err = e.Delete(func(*Flow) bool { return true })
	}
	return errors.Join(err, e.objects.Lease.Set(now()+uint64(e.lease)))
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
	if !e.tc {
		l, err := e.attachTCX(loopback, e.objects.Forward)
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
	f, err := e.attachTC(loopback, e.objects.Forward)
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
		for _, index := range all {
			f, err := e.attachTC(index, e.objects.Forward)
			if err != nil {
				return err
			}
			e.attached[index], e.part[index] = f, true
		}
		return err
	}
	pins, err := filepath.Glob(filepath.Join(e.dir, linkPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range pins {
		index, _ := strconv.Atoi(filepath.Base(path)[len(linkPrefix):])
		l, err := link.LoadPinnedLink(path, nil)
		if err == nil {
			if err = l.Update(e.objects.Forward); err == nil {
				e.attached[index], e.part[index] = &tcxLink{l, e, index, path}, true
				continue
			}
			_ = l.Close()
		}
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
	_, err := os.Stat(e.flowsPin())
	all := map[int]bool{}
	for index, a := range e.attached {
		if e.part[index] && (err != nil || !a.intact()) {
			all[index] = true
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
	for index, a := range e.attached {
		takesPart, stays := all[index]
		less = less || e.part[index] && !takesPart
		if stays && a.intact() {
			if e.part[index] == takesPart {
				continue
			}
			if err := a.use(e.program(takesPart)); err == nil {
				e.part[index] = takesPart
				continue
			}
		}
		errs = append(errs, a.detach())
		delete(e.attached, index)
		delete(e.part, index)
	}
	// Another program may have removed the folder.
	errs = append(errs, os.MkdirAll(e.dir, 0o700))
	if _, err := os.Stat(e.flowsPin()); errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, e.objects.Flows.Unpin(), e.objects.Flows.Pin(e.flowsPin()))
	}
	for index, takesPart := range all {
		if e.attached[index] != nil {
			continue
		}
		a, err := e.attach(index, e.program(takesPart))
		if errors.Is(err, unix.ENODEV) || err != nil && !takesPart {
			continue // it was deleted meanwhile, which is reported as well; or its filters are shared with other interfaces
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("BPF program at interface %d: %w", index, err))
			continue
		}
		e.attached[index], e.part[index] = a, takesPart
	}
	if less {
		errs = append(errs, e.delete(func(f *Flow) bool { return !all[f.In] || !all[f.Out] || !all[f.back] }))
	}
	return errors.Join(errs...)
}

// program is the one for interfaces that take part or do not.
func (e *Engine) program(takesPart bool) *ebpf.Program {
	if takesPart {
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
	for index := range e.attached {
		kept[index] = all[index] && e.part[index]
		less = less || e.part[index] && !kept[index]
	}
	if !less {
		return nil
	}
	return e.setInterfaces(kept)
}

// Stats returns the current numbers.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Run offloads connections and deletes idle flows, until ctx ends.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { e.listen(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := errors.Join(e.renew(), e.watchIPsec())
		if err == nil && time.Since(last) >= sweepEvery {
			last, err = time.Now(), errors.Join(e.setTimeouts(), e.Sweep(Idle))
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
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.peers)
	if e.ipsec = err != nil || len(policies) > 0; e.ipsec {
		return errors.Join(err, e.delete(func(*Flow) bool { return true }))
	}
	return e.endDirect()
}

// Sweep deletes the flows of connections that had no packet for a time.
func (e *Engine) Sweep(idle time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sweep(idle)
}

func (e *Engine) sweep(idle time.Duration) error {
	at := now()
	clear(e.flows)
	e.counted = at
	for id, t := range e.tries {
		if t.until+uint64(t.wait) < at {
			delete(e.tries, id)
		}
	}
	return deleteFrom(e.objects.Flows, func(f *Flow) bool {
		if f.used+uint64(idle) < at {
			return true
		}
		e.flows[uint32(f.In)]++
		return false
	})
}

// now is the time by the program's clock, in nanoseconds.
func now() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t) // Linux 2.6.32 has it
	return uint64(t.Nano())
}

// Close closes the Engine. The program and its flows remain in the kernel.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, a := range e.attached {
		errs = append(errs, a.Close())
	}
	e.attached = map[int]attachment{}
	errs = append(errs, e.objects.Close())
	if e.ct != nil {
		errs = append(errs, e.ct.Close())
	}
	for _, socket := range []*netlink.Conn{e.log, e.news} {
		if socket != nil {
			errs = append(errs, socket.Close())
		}
	}
	if e.route != nil {
		e.route.Close()
	}
	return errors.Join(errs...)
}

// Detach detaches the program from all interfaces and deletes all flows.
func (e *Engine) Detach() error {
	return errors.Join(e.SetInterfaces(nil), e.Delete(func(*Flow) bool { return true }))
}

// Remove removes what an Engine that is closed has left in a network namespace. It does nothing
// if there is nothing.
func Remove(ns int) error {
	dir, err := bpffs.Folder(pins, ns)
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), removeFilters(ns))
}
