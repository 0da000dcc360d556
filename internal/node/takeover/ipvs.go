// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
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
	restore func() error // see Options.RestoreParameters

	// left has the virtual servers that the last look has left, and whether they are
	// idle. It is nil before the first look.
	left map[ipvs.Key]bool
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
			busy[s.Addr] = true
		}
		if err := errors.Join(removeSets(ctx), keepRoutes(busy)); err != nil {
			return err
		}
		if len(busy) > 0 {
			out.draining = true
			return eachAddress(link, func(a *netlink.Addr) error {
				if busy[plain(a.IP)] { // the kernel must accept its packets
					return nil
				}
				return removeAddress(link, a)
			})
		}
		if v.restore != nil {
			if err := v.restore(); err != nil {
				return err
			}
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
	conn, err := ipvs.Dial(0)
	if feature.Lacks(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	servers, err := v.list(ctx, conn)
	if err != nil {
		return err
	}
	left := map[ipvs.Key]bool{}
	var remove []ipvs.Request
	var udp []netip.AddrPort // of those that are removed
	for _, key := range servers {
		if v.drain {
			destinations, err := conn.Destinations(ctx, key)
			if err != nil {
				return err
			}
			established := slices.ContainsFunc(destinations, func(d ipvs.Destination) bool { return d.Active > 0 })
			if established || !v.left[key] {
				left[key] = !established
				continue
			}
		}
		remove = append(remove, ipvs.DeleteService(key))
		if key.Protocol == unix.IPPROTO_UDP {
			udp = append(udp, netip.AddrPortFrom(key.Addr, key.Port))
		}
	}
	var refused error
	err = conn.Execute(ctx, remove, func(_ int, err error) {
		if !errors.Is(err, unix.ESRCH) {
			refused = fmt.Errorf("removing IPVS virtual servers: %w", err)
		}
	})
	if err = errors.Join(err, refused); err != nil {
		return err
	}
	v.left = left
	if len(remove) > 0 {
		out.removed = append(out.removed, fmt.Sprintf("%d IPVS virtual servers", len(remove)))
	}
	return forgetFlows(ctx, udp)
}

// list returns kube-proxy's virtual servers. It does not use those by firewall mark.
func (v *virtualServers) list(ctx context.Context, conn *ipvs.Conn) (servers []ipvs.Key, err error) {
	all, err := conn.Services(ctx)
	for _, s := range all {
		if s.Mark != 0 {
			continue
		}
		if may, err := conn.MayBeProxys(ctx, s.Key, v.exclude); err != nil {
			return nil, err
		} else if !may {
			continue
		}
		if _, known := v.left[s.Key]; v.left != nil && !known {
			return nil, errBack
		}
		servers = append(servers, s.Key)
	}
	return servers, err
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

// HasSets reports whether there are IP sets of kube-proxy's IPVS mode, which Slipstream's has none of.
func HasSets() bool {
	conn, err := ipset.Dial(0)
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = conn.Count("KUBE-" + ipsets[0])
	return err == nil
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
