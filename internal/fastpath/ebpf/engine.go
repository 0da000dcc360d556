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
	tc      bool // the kernel has no tcx

	mu       sync.Mutex
	attached map[int]attachment // by interface
	peers    map[int]uint8      // of interfaces, not older than a second
	ipsec    bool               // there are IPsec policies
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
// removed. It needs CAP_SYS_ADMIN. With tc it uses filters of tc even if the kernel has tcx. The
// error is one line that says what the kernel lacks.
func Open(ns int, tc bool) (e *Engine, err error) {
	e = &Engine{netns: ns, tc: tc, attached: map[int]attachment{}, peers: map[int]uint8{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
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
	if err = e.load(); err != nil {
		return e, err
	}
	if e.route, err = links.NewHandleAt(namespace(ns), unix.NETLINK_ROUTE, unix.NETLINK_XFRM); err != nil {
		// A kernel without IPsec does not have the second.
		if e.route, err = links.NewHandleAt(namespace(ns), unix.NETLINK_ROUTE); err != nil {
			return e, err
		}
	}
	if err = e.probe(); err != nil {
		return e, err
	}
	if err = e.adopt(); err != nil {
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
	err = dataplane.Inside(e.netns, func() error {
		_, udp := sysctl.UDPTimeouts()
		return errors.Join(spec.Variables["tcp_timeout"].Set(milliseconds(sysctl.TCPTimeout())), spec.Variables["udp_timeout"].Set(milliseconds(udp)))
	})
	if err != nil {
		return err
	}
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

func milliseconds(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), math.MaxUint32)) }

// probe attaches the program to the loopback interface for a moment.
func (e *Engine) probe() error {
	const loopback = 1
	if !e.tc {
		l, err := e.attachTCX(loopback)
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
	f, err := e.attachTC(loopback)
	if err != nil {
		return fmt.Errorf("BPF program at the ingress of an interface (tcx, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF): %w", err)
	}
	return f.detach()
}

const linkPrefix = "interface-"

func (e *Engine) flowsPin() string { return filepath.Join(e.dir, "flows") }

// adopt takes over the links and filters of an earlier Engine, with its own program.
func (e *Engine) adopt() error {
	if e.tc {
		all, err := filtered(e.route)
		for _, index := range all {
			f, err := e.attachTC(index)
			if err != nil {
				return err
			}
			e.attached[index] = f
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
				e.attached[index] = &tcxLink{l, index, path}
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

// Detached returns the interfaces, by index, from which another program has detached this one, or
// has removed what is pinned. They may also have been deleted. SetInterfaces attaches it again.
func (e *Engine) Detached() map[int]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := os.Stat(e.flowsPin())
	all := map[int]bool{}
	for index, a := range e.attached {
		if err != nil || !a.intact() {
			all[index] = true
		}
	}
	return all
}

// SetInterfaces attaches the program to the interfaces, by index, and detaches it from others.
// Flows of these end. After an error, the other interfaces are done.
func (e *Engine) SetInterfaces(all map[int]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	less := false
	for index, a := range e.attached {
		if all[index] && a.intact() {
			continue
		}
		less = less || !all[index]
		errs = append(errs, a.detach())
		delete(e.attached, index)
	}
	// Another program may have removed the folder.
	errs = append(errs, os.MkdirAll(e.dir, 0o700))
	if _, err := os.Stat(e.flowsPin()); errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, e.objects.Flows.Unpin(), e.objects.Flows.Pin(e.flowsPin()))
	}
	for index := range all {
		if e.attached[index] != nil {
			continue
		}
		a, err := e.attach(index)
		if err != nil {
			errs = append(errs, fmt.Errorf("BPF program at interface %d: %w", index, err))
			continue
		}
		e.attached[index] = a
	}
	if less {
		errs = append(errs, e.delete(func(f *Flow) bool { return !all[f.In] || !all[f.Out] }))
	}
	return errors.Join(errs...)
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
		err := e.watchIPsec()
		if err == nil && time.Since(last) >= sweepEvery {
			last, err = time.Now(), e.Sweep(Idle)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Fast path: flows could not be maintained")
		}
	}
}

// watchIPsec has no connections offloaded while there are IPsec policies, which the program does
// not know.
func (e *Engine) watchIPsec() error {
	policies, err := e.route.XfrmPolicyList(links.FAMILY_ALL)
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.peers)
	if e.ipsec = err == nil && len(policies) > 0; e.ipsec {
		return e.delete(func(*Flow) bool { return true })
	}
	return nil
}

// Sweep deletes the flows of connections that had no packet for a time.
func (e *Engine) Sweep(idle time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := now()
	return e.delete(func(f *Flow) bool { return f.used+uint64(idle) < at })
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
	if e.log != nil {
		errs = append(errs, e.log.Close())
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
