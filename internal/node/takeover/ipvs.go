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
	dataplane "github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
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

	// left has the virtual servers that the last look has left, and whether they are
	// idle. It is nil before the first look.
	left map[server]bool
}

// server identifies a virtual server.
type server struct {
	netip.AddrPort
	protocol uint16
}

// errBack is a failure that another try cannot change.
var errBack = errors.New("interface " + dummy + " stays: there are new IPVS virtual servers, as if kube-proxy were running again")

// remove removes everything that no connection needs.
func (v *virtualServers) remove(ctx context.Context) (out outcome) {
	out.failed = func() error {
		link, err := kubeIPVS()
		if err != nil {
			return err
		}
		if link == nil {
			return keepRoutes(nil) // another program may have removed the interface
		}
		if err := v.removeServers(ctx, &out); err != nil {
			return err
		}
		busy := map[netip.Addr]bool{}
		for s := range v.left {
			busy[s.Addr()] = true
		}
		if err := errors.Join(removeSets(ctx), keepRoutes(busy)); err != nil {
			return err
		}
		if len(busy) > 0 {
			out.draining = true
			return keepAddresses(link, busy)
		}
		if err := dataplane.RestoreParameters(); err != nil {
			return err
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("removing kube-proxy's interface %s: %w", dummy, err)
		}
		out.removed = append(out.removed, "interface "+dummy+" and its ipsets")
		return nil
	}()
	if errors.Is(out.failed, errBack) {
		out.stays, out.failed = []error{out.failed}, nil
	}
	return out
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
	var udp []netip.AddrPort // of those that were removed
	for name, s := range servers {
		if v.drain {
			active, err := established(handle, s)
			if err != nil {
				return fmt.Errorf("listing destinations of IPVS virtual server %s: %w", name, err)
			}
			if active > 0 || !v.left[name] {
				left[name] = active == 0
				continue
			}
		}
		if err := handle.DelService(s); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("removing IPVS virtual server %s: %w", name, err)
		}
		if s.Protocol == unix.IPPROTO_UDP {
			udp = append(udp, name.AddrPort)
		}
	}
	v.left = left
	if n := len(servers) - len(left); n > 0 {
		out.removed = append(out.removed, fmt.Sprintf("%d IPVS virtual servers", n))
	}
	return forgetFlows(ctx, udp)
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
		addr := plain(s.Address)
		if !addr.IsValid() || slices.ContainsFunc(v.exclude, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			continue // one without an address is by firewall mark, which kube-proxy does not use
		}
		name := server{netip.AddrPortFrom(addr, s.Port), s.Protocol}
		if _, known := v.left[name]; v.left != nil && !known {
			return nil, errBack
		}
		servers[name] = s
	}
	return servers, nil
}

// established returns the number of established connections of a virtual server.
func established(handle *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := handle.GetDestinations(s)
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
}

// forgetFlows deletes the conntrack entries of UDP flows to virtual servers, so that the next
// packets of clients that keep sending pass the NAT rules.
func forgetFlows(ctx context.Context, servers []netip.AddrPort) (err error) {
	if len(servers) == 0 {
		return nil
	}
	conn, err := conntrack.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ForgetIPVS(ctx, desired.UDP, servers); err != nil {
		return fmt.Errorf("deleting conntrack entries of UDP flows to IPVS virtual servers: %w", err)
	}
	return nil
}

// removeSets removes the IP sets of IPVS mode. kube-proxy truncates long names.
func removeSets(ctx context.Context) error {
	var names []string
	for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
		for _, name := range ipsets {
			name = prefix + name
			names = append(names, name[:min(ipset.MaxNameLen, len(name))])
		}
	}
	return ipset.Destroy(ctx, names...)
}
