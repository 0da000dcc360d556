// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// virtualServers is the step that removes what IPVS mode has beside its chains: virtual
// servers, IP sets, addresses, and the interface. The interface goes last, as it shows
// that there may be anything at all.
//
// With drain set, a virtual server stays while it has established connections:
//
//	            no connections                  still none
//	in use ------------------------> idle ----------------------> removed
//	        <------------------------
//	            a connection
//
// with one transition in each look. The second look catches connections that were being
// established during the first. A virtual server that is new after the first look shows
// that kube-proxy runs again; the step then leaves everything to it.
type virtualServers struct {
	drain   bool
	exclude []netip.Prefix

	looked   bool
	idle     map[server]bool // those left by the last look
	setsGone bool
}

// server identifies a virtual server.
type server struct {
	netip.AddrPort
	protocol uint16
}

// Failures that another try cannot change.
var (
	errNotDummy = errors.New("interface " + dummy + " stays: it is not kube-proxy's")
	errBack     = errors.New("interface " + dummy + " stays: there are new IPVS virtual servers, as if kube-proxy were running again")
)

func (v *virtualServers) remove(ctx context.Context) (out outcome) {
	link, err := kubeIPVS()
	switch {
	case link != nil:
		err = v.look(ctx, link, &out)
	case err == nil && v.looked: // another process has removed the interface
		err = keepRoutes(nil)
	}
	if errors.Is(err, errNotDummy) || errors.Is(err, errBack) {
		out.stays = append(out.stays, err)
	} else {
		out.failed = err
	}
	return out
}

// look removes all that no connection needs.
func (v *virtualServers) look(ctx context.Context, link netlink.Link, out *outcome) error {
	if err := v.removeServers(out); err != nil {
		return err
	}
	if !v.setsGone {
		if err := removeSets(ctx); err != nil {
			return err
		}
		v.setsGone = true
	}
	busy := map[netip.Addr]bool{}
	for s := range v.idle {
		busy[s.Addr()] = true
	}
	if err := keepRoutes(busy); err != nil {
		return err
	}
	if len(busy) > 0 {
		out.draining = true
		return keepAddresses(link, busy)
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("removing kube-proxy's interface %s: %w", dummy, err)
	}
	out.removed = append(out.removed, "interface "+dummy+" and its ipsets")
	return nil
}

// removeServers removes kube-proxy's virtual servers, except those that drain.
func (v *virtualServers) removeServers(out *outcome) error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // the kernel has no IPVS
		}
		return fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	handle, err := openIPVS()
	if err != nil {
		return fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	defer handle.Close()
	theirs, err := v.list(handle)
	if err != nil {
		return err
	}
	left := map[server]bool{}
	var datagrams []netip.AddrPort
	removed := 0
	for name, s := range theirs {
		if v.drain {
			active, err := established(handle, s)
			if err != nil {
				return fmt.Errorf("listing destinations of IPVS virtual server %s: %w", name, err)
			}
			if active > 0 || !v.idle[name] {
				left[name] = active == 0
				continue
			}
		}
		if err := handle.DelService(s); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("removing IPVS virtual server %s: %w", name, err)
		}
		removed++
		if name.protocol == unix.IPPROTO_UDP {
			datagrams = append(datagrams, name.AddrPort)
		}
	}
	v.looked, v.idle = true, left
	if removed > 0 {
		out.removed = append(out.removed, fmt.Sprintf("%d IPVS virtual servers", removed))
	}
	return forgetFlows(datagrams)
}

// openIPVS keeps moby/ipvs from logging, which it does to a log of its own where modprobe
// is not installed. It is used only where the kernel has IPVS.
func openIPVS() (*ipvs.Handle, error) {
	defer logrus.SetOutput(logrus.StandardLogger().Out)
	logrus.SetOutput(io.Discard)
	return ipvs.New("")
}

// list lists kube-proxy's virtual servers.
func (v *virtualServers) list(handle *ipvs.Handle) (map[server]*ipvs.Service, error) {
	all, err := handle.GetServices()
	if err != nil {
		return nil, fmt.Errorf("listing IPVS virtual servers: %w", err)
	}
	theirs := map[server]*ipvs.Service{}
	for _, s := range all {
		addr, ok := netip.AddrFromSlice(s.Address)
		addr = addr.Unmap()
		if !ok || slices.ContainsFunc(v.exclude, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			continue // without an address: by firewall mark, never kube-proxy's
		}
		name := server{netip.AddrPortFrom(addr, s.Port), s.Protocol}
		if _, known := v.idle[name]; v.looked && !known {
			return nil, errBack
		}
		theirs[name] = s
	}
	return theirs, nil
}

// forgetFlows makes conntrack forget UDP flows that virtual servers carried. Otherwise the
// packets of clients that keep sending would not begin new flows, which our rules
// translate.
func forgetFlows(servers []netip.AddrPort) (err error) {
	if len(servers) == 0 {
		return nil
	}
	conn, err := conntrack.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ForgetIPVS(context.Background(), desired.UDP, servers); err != nil {
		return fmt.Errorf("deleting conntrack's entries of UDP flows to IPVS virtual servers: %w", err)
	}
	return nil
}

// established is the number of established connections of a virtual server.
func established(handle *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := handle.GetDestinations(s)
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
}
