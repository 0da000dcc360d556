// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dialNews opens a socket that receives a notification of each change of a queueing discipline or
// a filter of tc.
func dialNews(ns int) (*netlink.Conn, error) {
	news, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: ns})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to rtnetlink: %w", err)
	}
	if err := news.JoinGroup(unix.RTNLGRP_TC); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to tc: %w", err), news.Close())
	}
	return news, nil
}

// Outdated reports whether what Filters has returned may have changed since it was last called.
func (e *Engine) Outdated() (is bool) {
	raw, err := e.news.SyscallConn()
	if err == nil {
		is, err = sock.Drain(raw)
	}
	return is || err != nil
}

// Filters returns the interfaces, by index, with a filter of another program that packets on the
// fast path would not pass, or would pass without their conntrack entry and mark, and what it is.
// Our program at tcx comes before filters at the ingress. As a filter it comes after those of lower
// numbers of priority.
//
// Packets to a pod do pass a queueing discipline. If there is a new one, flows that go to the pod
// directly end with their next check.
func (e *Engine) Filters() (map[int]string, error) {
	qdiscs, err := netif.Complete(func() ([]links.Qdisc, error) { return e.route.QdiscList(nil) })
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without CONFIG_NET_SCHED
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	filters, queues := map[int]string{}, map[int]bool{}
	for _, q := range qdiscs {
		index := q.Attrs().LinkIndex
		switch q.Type() {
		case "noqueue":
		case clsact:
			e.filters(filters, index, links.HANDLE_MIN_EGRESS)
			fallthrough
		case "ingress":
			e.filters(filters, index, links.HANDLE_MIN_INGRESS)
		default:
			queues[index] = true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queues = queues
	clear(e.veths)
	return filters, e.show()
}

// filters adds an interface if it has a filter of another program at the ingress or the egress, or if
// its filters cannot be read.
func (e *Engine) filters(to map[int]string, index int, parent uint32) {
	all, err := netif.Complete(func() ([]links.Filter, error) { return e.route.FilterList(byIndex(index), parent) })
	if err != nil {
		to[index] = fmt.Sprintf("filters of tc that cannot be read (%v)", err)
	}
	for _, f := range all {
		b, is := f.(*links.BpfFilter)
		switch {
		case is && b.Name == filterName && b.Priority == filterPriority:
		case e.tc && parent == links.HANDLE_MIN_INGRESS && f.Attrs().Priority <= filterPriority: // at our place, attachTC reports it
		default:
			at := map[uint32]string{links.HANDLE_MIN_INGRESS: "ingress", links.HANDLE_MIN_EGRESS: "egress"}[parent]
			to[index] = fmt.Sprintf("a filter of tc at the %s (%s)", at, f.Type())
		}
	}
}

// show tells the program which interfaces take part, and whether packets go directly to their other ends. It ends
// flows of which that is not so any more.
func (e *Engine) show() error {
	var errs []error
	for index, peer := range e.shown {
		if !e.part[index] {
			errs = append(errs, e.objects.Interfaces.Delete(uint32(index)))
			delete(e.shown, index)
		} else if is := e.peer(index); is != peer {
			delete(e.shown, index)
		}
	}
	for index, takesPart := range e.part {
		if _, is := e.shown[index]; is || !takesPart {
			continue
		}
		var i programInterface
		_ = e.objects.Interfaces.Lookup(uint32(index), &i) // if there is none, it has no connections
		i.Peer = e.peer(index)
		if err := e.objects.Interfaces.Put(uint32(index), &i); err != nil {
			errs = append(errs, err)
			continue // it is tried again
		}
		e.shown[index] = i.Peer
	}
	return errors.Join(errs...)
}

// peer is 1 if packets can go directly to the other end of a veth pair.
func (e *Engine) peer(index int) uint8 {
	is, known := e.veths[index]
	if !known {
		l, err := e.route.LinkByIndex(index)
		is = err == nil && l.Type() == "veth" && l.Attrs().NetNsID >= 0
		e.veths[index] = is
	}
	if is && !e.usedAtEgress(index) {
		return 1
	}
	return 0
}

// usedAtEgress reports whether packets to an interface have to pass a queueing discipline or a
// program of tcx.
func (e *Engine) usedAtEgress(index int) bool {
	foreign := func(p link.AttachedProgram) bool { return p.ID != e.learnID }
	return e.queues[index] || slices.ContainsFunc(e.programs(index, ebpf.AttachTCXEgress), foreign)
}

// programs returns the programs of tcx at an interface, in their order; none before Linux 6.6.
func (e *Engine) programs(index int, at ebpf.AttachType) (all []link.AttachedProgram) {
	_ = dataplane.Inside(e.netns, func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err == nil {
			all = found.Programs
		}
		return err
	})
	return all
}
