// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachment is one of the programs at the ingress of an interface.
type attachment interface {
	intact() bool              // no other program has detached it
	use(p *ebpf.Program) error // instead of the one that is attached
	detach() error             // and closes it
	Close() error              // it remains attached
}

// tcxLink is a link of tcx, which is pinned.
type tcxLink struct {
	link.Link
	engine *Engine
	index  int
	pin    string
}

func (l *tcxLink) intact() bool {
	if _, err := os.Stat(l.pin); err != nil {
		return false
	}
	info, err := l.Info()
	if err != nil || info.TCX() == nil || int(info.TCX().Ifindex) != l.index {
		return false
	}
	// A program that comes after ours would not see the packets that ours forwards.
	all := l.engine.programs(l.index, ebpf.AttachTCXIngress)
	return !l.engine.part[l.index] || len(all) > 0 && all[len(all)-1].ID == info.Program
}

func (l *tcxLink) use(p *ebpf.Program) error { return l.Update(p) }

func (l *tcxLink) detach() error { return errors.Join(l.Unpin(), l.Close()) }

// attachTCX attaches a program without pinning it.
func (e *Engine) attachTCX(index int, p *ebpf.Program) (l link.Link, err error) {
	err = dataplane.Inside(e.netns, func() (err error) {
		// Programs of others come first, if they do not ask for another order.
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
		return err
	})
	return l, err
}

func (e *Engine) attach(index int, p *ebpf.Program) (attachment, error) {
	if e.tc {
		return e.attachTC(index, p)
	}
	l, err := e.attachTCX(index, p)
	if err != nil {
		return nil, err
	}
	pinned := &tcxLink{l, e, index, filepath.Join(e.dir, linkPrefix+strconv.Itoa(index))}
	if err := l.Pin(pinned.pin); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return pinned, nil
}

// filter is a filter of tc, which the kernel keeps without a pin.
type filter struct {
	*links.BpfFilter
	route *links.Handle
}

// The qdisc at the ingress, and our filter there, after those of others: tc numbers these
// from 49152 downwards if they have no priority.
const (
	clsact         = "clsact"
	filterName     = "slipstream-fastpath"
	filterPriority = 65000
	filterHandle   = 1
)

// attachTC adds the filter, or replaces that of an earlier Engine. It also adds the qdisc, which
// is never removed, as other programs may use it.
func (e *Engine) attachTC(index int, p *ebpf.Program) (*filter, error) {
	err := e.route.QdiscAdd(newClsact(index))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	if name, exists := filterAt(e.route, index); exists && name != filterName {
		return nil, fmt.Errorf("priority %d has filter %q of another program", filterPriority, name)
	}
	f := &filter{newFilter(index, -1), e.route}
	return f, f.use(p)
}

func newClsact(index int) links.Qdisc {
	return &links.GenericQdisc{QdiscType: clsact, QdiscAttrs: links.QdiscAttrs{
		LinkIndex: index, Handle: links.MakeHandle(0xffff, 0), Parent: links.HANDLE_CLSACT,
	}}
}

func newFilter(index, fd int) *links.BpfFilter {
	return &links.BpfFilter{Name: filterName, Fd: fd, DirectAction: true, FilterAttrs: links.FilterAttrs{
		LinkIndex: index, Parent: links.HANDLE_MIN_INGRESS, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
	}}
}

func (f *filter) use(p *ebpf.Program) error {
	return f.route.FilterReplace(newFilter(f.LinkIndex, p.FD()))
}

func (f *filter) intact() bool { return hasFilter(f.route, f.LinkIndex) }

// hasFilter reports whether an interface has a filter of an Engine.
func hasFilter(route *links.Handle, index int) bool {
	name, exists := filterAt(route, index)
	return exists && name == filterName
}

// filterAt returns the name of the filter in our place, which may also be that of another program.
func filterAt(route *links.Handle, index int) (name string, exists bool) {
	all, _ := route.FilterList(byIndex(index), links.HANDLE_MIN_INGRESS) // an interface may not exist any more
	for _, f := range all {
		if b, is := f.(*links.BpfFilter); is && b.Priority == filterPriority && b.Handle == filterHandle {
			name, exists = b.Name, true
		}
	}
	return name, exists
}

func byIndex(index int) links.Link {
	return &links.GenericLink{LinkAttrs: links.LinkAttrs{Index: index}}
}

func (f *filter) detach() error {
	if !f.intact() {
		return nil
	}
	return f.route.FilterDel(newFilter(f.LinkIndex, -1))
}

func (f *filter) Close() error { return nil }

// filtered returns the interfaces that have a filter of an Engine.
func filtered(route *links.Handle) (indexes []int, err error) {
	all, err := route.QdiscList(nil)
	for _, q := range all {
		if index := q.Attrs().LinkIndex; q.Attrs().Parent == links.HANDLE_CLSACT && hasFilter(route, index) {
			indexes = append(indexes, index)
		}
	}
	return indexes, err
}

// removeFilters removes the filters of an Engine from a network namespace.
func removeFilters(ns int) error {
	route, err := links.NewHandleAt(namespace(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer route.Close()
	all, err := filtered(route)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without CONFIG_NET_SCHED
	}
	for _, index := range all {
		err = errors.Join(err, (&filter{newFilter(index, -1), route}).detach())
	}
	return err
}
