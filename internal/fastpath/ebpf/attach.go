// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// place is where a program is at an interface: at the ingress forward or guard, at the egress learn.
type place struct {
	index  int
	egress bool
}

// parent is the place as that of a filter of tc.
func (p place) parent() uint32 {
	if p.egress {
		return links.HANDLE_MIN_EGRESS
	}
	return links.HANDLE_MIN_INGRESS
}

// attachment is one of the programs at an interface.
type attachment interface {
	intact() bool              // no other program has detached it
	program() ebpf.ProgramID   // that is attached; 0 if it is gone
	use(p *ebpf.Program) error // instead of the one that is attached
	detach() error             // and closes it
	Close() error              // it remains attached
}

// tcxLink is a link of tcx. At the ingress it is pinned.
type tcxLink struct {
	link.Link
	engine *Engine
	at     place
	pin    string
}

func (l *tcxLink) intact() bool {
	info, err := l.Info()
	if err != nil || info.TCX() == nil || int(info.TCX().Ifindex) != l.at.index {
		return false
	}
	if l.at.egress {
		return true
	}
	if _, err := os.Stat(l.pin); err != nil {
		return false
	}
	// A program that comes after ours would not see the packets that ours forwards.
	all := l.engine.programs(l.at.index, ebpf.AttachTCXIngress)
	return !l.engine.part[l.at.index] || len(all) > 0 && all[len(all)-1].ID == info.Program
}

func (l *tcxLink) program() ebpf.ProgramID {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

func (l *tcxLink) use(p *ebpf.Program) error { return l.Update(p) }

func (l *tcxLink) detach() (err error) {
	if !l.at.egress {
		err = l.Unpin()
	}
	return errors.Join(err, l.Close())
}

// attachTCX attaches a program without pinning it.
func (e *Engine) attachTCX(at place, p *ebpf.Program) (link.Link, error) {
	// Programs of others at the ingress come first, if they do not ask for another order.
	o := link.TCXOptions{Interface: at.index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()}
	if at.egress {
		o.Attach, o.Anchor = ebpf.AttachTCXEgress, link.Head()
	}
	return dataplane.In(e.netns, func() (link.Link, error) { return link.AttachTCX(o) })
}

func (e *Engine) attach(at place, p *ebpf.Program) (attachment, error) {
	if e.tc {
		return e.attachTC(at, p)
	}
	l, err := e.attachTCX(at, p)
	if err != nil {
		return nil, err
	}
	attached := &tcxLink{l, e, at, filepath.Join(e.dir, linkPrefix+strconv.Itoa(at.index))}
	if !at.egress { // without this process nothing is learned
		err = l.Pin(attached.pin)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return attached, nil
}

// filter is a filter of tc, which the kernel keeps without a pin.
type filter struct {
	*links.BpfFilter
	route *links.Handle
	at    place
}

// The qdisc, and our filter there, after those of others: tc numbers these
// from 49152 downwards if they have no priority.
const (
	clsact         = "clsact"
	filterName     = "slipstream-fastpath"
	filterPriority = 65000
	filterHandle   = 1
)

// attachTC adds the filter, or replaces that of an earlier Engine. It also adds the qdisc, which
// is never removed, as other programs may use it.
func (e *Engine) attachTC(at place, p *ebpf.Program) (*filter, error) {
	err := e.route.QdiscAdd(newClsact(at.index))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	if b := filterAt(e.route, at); b != nil && b.Name != filterName {
		return nil, fmt.Errorf("priority %d has filter %q of another program", filterPriority, b.Name)
	}
	f := &filter{newFilter(at, -1), e.route, at}
	return f, f.use(p)
}

func newClsact(index int) links.Qdisc {
	return &links.GenericQdisc{QdiscType: clsact, QdiscAttrs: links.QdiscAttrs{
		LinkIndex: index, Handle: links.MakeHandle(0xffff, 0), Parent: links.HANDLE_CLSACT,
	}}
}

func newFilter(at place, fd int) *links.BpfFilter {
	return &links.BpfFilter{Name: filterName, Fd: fd, DirectAction: true, FilterAttrs: links.FilterAttrs{
		LinkIndex: at.index, Parent: at.parent(), Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
	}}
}

func (f *filter) use(p *ebpf.Program) error {
	return f.route.FilterReplace(newFilter(f.at, p.FD()))
}

func (f *filter) intact() bool { return hasFilter(f.route, f.at) }

func (f *filter) program() (id ebpf.ProgramID) {
	if b := filterAt(f.route, f.at); b != nil {
		id = ebpf.ProgramID(b.Id)
	}
	return id
}

// hasFilter reports whether an Engine has a filter at a place.
func hasFilter(route *links.Handle, at place) bool {
	b := filterAt(route, at)
	return b != nil && b.Name == filterName
}

// filterAt returns the filter in our place, which may also be that of another program; nil without one.
func filterAt(route *links.Handle, at place) (found *links.BpfFilter) {
	all, _ := route.FilterList(byIndex(at.index), at.parent()) // an interface may not exist any more
	for _, f := range all {
		if b, is := f.(*links.BpfFilter); is && b.Priority == filterPriority && b.Handle == filterHandle {
			found = b
		}
	}
	return found
}

func byIndex(index int) links.Link {
	return &links.GenericLink{LinkAttrs: links.LinkAttrs{Index: index}}
}

func (f *filter) detach() error {
	if !f.intact() {
		return nil
	}
	return f.route.FilterDel(newFilter(f.at, -1))
}

func (f *filter) Close() error { return nil }

// filtered returns the places that have a filter of an Engine.
func filtered(route *links.Handle) (places []place, err error) {
	all, err := route.QdiscList(nil)
	for _, q := range all {
		for _, egress := range []bool{false, true} {
			if at := (place{q.Attrs().LinkIndex, egress}); q.Attrs().Parent == links.HANDLE_CLSACT && hasFilter(route, at) {
				places = append(places, at)
			}
		}
	}
	return places, err
}

// removeFilters removes the filters of an Engine from a network namespace.
func removeFilters(ns int) error {
	route, err := links.NewHandleAt(sock.Namespace(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer route.Close()
	all, err := filtered(route)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without CONFIG_NET_SCHED
	}
	for _, at := range all {
		err = errors.Join(err, (&filter{newFilter(at, -1), route, at}).detach())
	}
	return err
}

// removeUnseen detaches programs at tcx whose pins this process does not see. That needs CAP_SYS_ADMIN; without it
// they stay, and do nothing once their lease has ended.
func removeUnseen(ns int) error {
	all, err := netif.Namespace(ns).List()
	for _, i := range all {
		for _, p := range (&Engine{netns: ns}).programs(i.Index, ebpf.AttachTCXIngress) {
			if id, has := p.LinkID(); has && usesFlows(p.ID) {
				if l, gone := link.NewFromID(id); gone == nil {
					err = errors.Join(err, l.Detach(), l.Close())
				}
			}
		}
	}
	return err
}

// usesFlows reports whether a program has a map of flows.
func usesFlows(id ebpf.ProgramID) (is bool) {
	for _, id := range bpffs.MapsOf(id) {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			is = is || m.Type() == ebpf.Hash && m.KeySize() == uint32(unsafe.Sizeof(programTuple{})) && m.ValueSize() == uint32(unsafe.Sizeof(programFlow{}))
			_ = m.Close()
		}
	}
	return is
}
