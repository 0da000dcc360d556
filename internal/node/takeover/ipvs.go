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
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// virtualServers is the step that removes what IPVS mode has besides chains: virtual servers,
// IP sets, addresses, and the interface. The interface is removed last, because it shows that
// the rest may exist.
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

	looked      bool
	idle        map[server]bool // those that the last look has left
	setsRemoved bool
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
	case err == nil && v.looked: // another program has removed the interface
		err = keepRoutes(nil)
	}
	if errors.Is(err, errNotDummy) || errors.Is(err, errBack) {
		out.stays = append(out.stays, err)
	} else {
		out.failed = err
	}
	return out
}

// look removes everything that no connection needs.
func (v *virtualServers) look(ctx context.Context, link netlink.Link, out *outcome) error {
	if err := v.removeServers(ctx, out); err != nil {
		return err
	}
	if !v.setsRemoved {
		if err := removeSets(ctx); err != nil {
			return err
		}
		v.setsRemoved = true
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
func (v *virtualServers) removeServers(ctx context.Context, out *outcome) error {
	handle, err := openIPVS()
	if handle == nil {
		return err
	}
	defer handle.Close()
	servers, err := v.list(handle)
	if err != nil {
		return err
	}
	left := map[server]bool{}
	var removed []server
	for name, s := range servers {
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
		removed = append(removed, name)
	}
	v.looked, v.idle = true, left
	if len(removed) > 0 {
		out.removed = append(out.removed, fmt.Sprintf("%d IPVS virtual servers", len(removed)))
	}
	return forgetFlows(ctx, removed)
}

// openIPVS returns nil if the kernel has no IPVS. It silences moby/ipvs, which logs if
// modprobe is not installed.
func openIPVS() (handle *ipvs.Handle, err error) {
	_, err = netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err == nil {
		defer logrus.SetOutput(logrus.StandardLogger().Out)
		logrus.SetOutput(io.Discard)
		handle, err = ipvs.New("")
	}
	if err != nil {
		return nil, fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	return handle, nil
}

// list returns kube-proxy's virtual servers.
func (v *virtualServers) list(handle *ipvs.Handle) (map[server]*ipvs.Service, error) {
	all, err := handle.GetServices()
	if err != nil {
		return nil, fmt.Errorf("listing IPVS virtual servers: %w", err)
	}
	servers := map[server]*ipvs.Service{}
	for _, s := range all {
		addr, ok := netip.AddrFromSlice(s.Address)
		addr = addr.Unmap()
		if !ok || slices.ContainsFunc(v.exclude, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			continue // one without an address is by firewall mark, which kube-proxy does not use
		}
		name := server{netip.AddrPortFrom(addr, s.Port), s.Protocol}
		if _, known := v.idle[name]; v.looked && !known {
			return nil, errBack
		}
		servers[name] = s
	}
	return servers, nil
}

// removeSets removes the IP sets of IPVS mode. kube-proxy truncates long names.
func removeSets(ctx context.Context) error {
	conn, err := ipset.Dial(0)
	if nfnl.IsUnsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	var names []string
	for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
		for _, name := range ipsets {
			name = prefix + name
			names = append(names, name[:min(ipset.MaxNameLen, len(name))])
		}
	}
	return conn.Destroy(ctx, names...)
}

// forgetFlows deletes the conntrack entries of UDP flows to virtual servers, so that the next
// packets of clients that keep sending pass the NAT rules.
func forgetFlows(ctx context.Context, servers []server) (err error) {
	var udp []netip.AddrPort
	for _, s := range servers {
		if s.protocol == unix.IPPROTO_UDP {
			udp = append(udp, s.AddrPort)
		}
	}
	if len(udp) == 0 {
		return nil
	}
	conn, err := conntrack.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ForgetIPVS(ctx, desired.UDP, udp); err != nil {
		return fmt.Errorf("deleting conntrack entries of UDP flows to IPVS virtual servers: %w", err)
	}
	return nil
}

// established returns the number of established connections of a virtual server.
func established(handle *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := handle.GetDestinations(s)
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
}
