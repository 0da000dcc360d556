// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
)

const directLink = "direct"

// addLink joins the pods by a link, which no route uses yet.
func (n *network) addLink() error {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: directLink})
	veth.PeerName, veth.PeerNamespace = directLink, netlink.NsFd(n.server.FD())
	if err := n.client.Netlink().LinkAdd(veth); err != nil {
		return fmt.Errorf("link between the pods: %w", err)
	}
	ends := map[*lab.Pod]netlink.Link{}
	for _, pod := range []*lab.Pod{n.client, n.server} {
		link, err := pod.Netlink().LinkByName(directLink)
		if err != nil {
			return fmt.Errorf("pod %s: %s: %w", pod.Name(), directLink, err)
		}
		if err := pod.Netlink().LinkSetUp(link); err != nil {
			return fmt.Errorf("pod %s: %s: %w", pod.Name(), directLink, err)
		}
		ends[pod] = link
	}
	for pod, other := range map[*lab.Pod]*lab.Pod{n.client: n.server, n.server: n.client} {
		err := pod.Netlink().NeighSet(&netlink.Neigh{
			LinkIndex: ends[pod].Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: other.Addr(false).AsSlice(), HardwareAddr: ends[other].Attrs().HardwareAddr,
		})
		if err != nil {
			return fmt.Errorf("pod %s: neighbour %s: %w", pod.Name(), other.Name(), err)
		}
	}
	return nil
}

// useLink routes the pods' packets to each other over their link, or as before.
func (n *network) useLink(_ context.Context, use bool) (err error) {
	for pod, other := range map[*lab.Pod]*lab.Pod{n.client: n.server, n.server: n.client} {
		link, failed := pod.Netlink().LinkByName(directLink)
		if failed == nil {
			route := netlink.Route{
				LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: pod.Addr(false).AsSlice(),
				Dst: netlink.NewIPNet(other.Addr(false).AsSlice()),
			}
			if use {
				failed = pod.Netlink().RouteAdd(&route)
			} else {
				failed = pod.Netlink().RouteDel(&route)
			}
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("pod %s: route by %s: %w", pod.Name(), directLink, failed))
		}
	}
	return err
}
