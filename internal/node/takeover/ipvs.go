// SPDX-License-Identifier: Apache-2.0

package takeover

import (
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

func init() {
	// moby/ipvs logs that there is no modprobe, in a format of its own. Where we use
	// it the kernel has IPVS already.
	logrus.SetOutput(io.Discard)
}

// virtualServers is the step that removes what IPVS mode has beside its chains, which have
// to be gone: virtual servers, ipsets, addresses, and the interface, which goes last: it
// tells that there may be anything at all.
//
// With drain set, virtual servers go when they have had no established connection in two
// looks, between which those that are about to be established are. Their addresses stay
// until then.
type virtualServers struct {
	drain    bool
	looked   bool
	left     map[server]bool // by the last look, and whether they were idle then
	setsGone bool
}

// server is what names a virtual server.
type server struct {
	netip.AddrPort
	protocol uint16
}

func (v *virtualServers) remove(o Options) (draining bool) {
	link, err := kubeIPVS()
	switch {
	case errors.Is(err, errNotDummy):
		o.stays(err)
		return false
	case err != nil:
		o.failed(err)
		return false
	case link == nil && v.looked: // somebody else has removed it
		if err := keepRoutes(nil); err != nil {
			o.failed(err)
		}
		return false
	case link == nil:
		return false
	}
	switch err := v.removeServers(o); {
	case errors.Is(err, errBack):
		o.stays(err)
		return false
	case err != nil:
		o.failed(err)
		return false
	}
	if !v.setsGone {
		if err := removeSets(); err != nil {
			o.failed(err)
			return false
		}
		v.setsGone = true
	}
	busy := map[netip.Addr]bool{}
	for s := range v.left {
		busy[s.Addr()] = true
	}
	if err := keepRoutes(busy); err != nil {
		o.failed(err)
		return false
	}
	if len(v.left) > 0 {
		if err := keepAddresses(link, busy); err != nil {
			o.failed(err)
		}
		return true
	}
	if err := netlink.LinkDel(link); err != nil {
		o.failed(fmt.Errorf("removing kube-proxy's interface %s: %w", dummy, err))
		return false
	}
	o.removed("interface " + dummy + " and its ipsets")
	return false
}

// errBack says that somebody programs IPVS again.
var errBack = fmt.Errorf("interface %s stays: there are new IPVS virtual servers, as if kube-proxy were running again", dummy)

// removeServers removes the virtual servers that are kube-proxy's, but those in left.
func (v *virtualServers) removeServers(o Options) error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // the kernel has no IPVS, or not any more
		}
		return fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	handle, err := ipvs.New("")
	if err != nil {
		return fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	defer handle.Close()
	all, err := handle.GetServices()
	if err != nil {
		return fmt.Errorf("listing IPVS virtual servers: %w", err)
	}
	theirs := map[server]*ipvs.Service{}
	for _, s := range all {
		addr, ok := netip.AddrFromSlice(s.Address)
		if !ok || o.excluded(addr.Unmap()) { // without an address: by firewall mark, never kube-proxy's
			continue
		}
		name := server{netip.AddrPortFrom(addr.Unmap(), s.Port), s.Protocol}
		if _, known := v.left[name]; v.looked && !known {
			return errBack
		}
		theirs[name] = s
	}
	left := map[server]bool{}
	var datagrams []netip.AddrPort
	removed := 0
	for name, s := range theirs {
		idle := true
		if v.drain {
			active, err := established(handle, s)
			if err != nil {
				return fmt.Errorf("listing destinations of IPVS virtual server %s: %w", name, err)
			}
			if idle = active == 0; !idle || !v.left[name] {
				left[name] = idle
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
	v.looked, v.left = true, left
	if removed > 0 {
		o.removed(fmt.Sprintf("%d IPVS virtual servers", removed))
	}
	return forgetFlows(datagrams)
}

// forgetFlows has conntrack forget UDP flows that virtual servers carried. Otherwise
// clients that keep sending would not become new ones, for which our rules are.
func forgetFlows(servers []netip.AddrPort) (err error) {
	if len(servers) == 0 {
		return nil
	}
	conn, err := conntrack.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ForgetIPVS(desired.UDP, servers); err != nil {
		return fmt.Errorf("deleting conntrack's entries of UDP flows to IPVS virtual servers: %w", err)
	}
	return nil
}

// established is how many established connections a virtual server has.
func established(handle *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := handle.GetDestinations(s)
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
}

func (o Options) excluded(addr netip.Addr) bool {
	return slices.ContainsFunc(o.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}
