// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"
	"unique"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// departed finds the endpoints of TCP that no EndpointSlice lists any more and whose Node was
// deleted, in either order. Nothing answers their connections, which would time out after many
// minutes. (An endpoint that has only left its slice may be shutting down gracefully.)
type departed struct {
	slices  map[types.NamespacedName][]placed
	listed  map[desired.Backend]int      // in how many slices
	onNode  map[nodeName]int             // how many endpoints the slices list
	left    map[desired.Backend]nodeName // endpoints that no slice lists
	last    map[nodeName][]desired.Backend
	nodes   map[nodeName]bool // that exist; a slice may name any others
	deleted map[nodeName]bool // deleted Nodes on which slices list endpoints
	stale   []desired.Backend
}

// placed is an endpoint and its Node.
type placed struct {
	desired.Backend
	node nodeName
}

type nodeName = unique.Handle[string]

// mostLeft is how many endpoints are remembered of a Node that exists, the last ones: ports, and addresses.
const mostLeft = 256

func newDeparted() *departed {
	return &departed{
		slices: map[types.NamespacedName][]placed{}, listed: map[desired.Backend]int{}, onNode: map[nodeName]int{},
		left: map[desired.Backend]nodeName{}, last: map[nodeName][]desired.Backend{}, nodes: map[nodeName]bool{}, deleted: map[nodeName]bool{},
	}
}

// setSlice replaces a slice's endpoints. Deleted slices have none.
func (d *departed) setSlice(name types.NamespacedName, now []placed) {
	was := d.slices[name]
	if len(now) == 0 {
		delete(d.slices, name)
	} else {
		d.slices[name] = now
	}
	for _, e := range now {
		d.listed[e.Backend]++
		d.onNode[e.node]++
		delete(d.left, e.Backend)
	}
	for _, e := range was {
		if d.listed[e.Backend]--; d.listed[e.Backend] == 0 {
			delete(d.listed, e.Backend)
			d.leave(e)
		}
		if d.onNode[e.node]--; d.onNode[e.node] == 0 {
			delete(d.onNode, e.node)
			delete(d.deleted, e.node)
		}
	}
}

// leave records an endpoint that no slice lists any more.
func (d *departed) leave(e placed) {
	if d.deleted[e.node] {
		d.stale = append(d.stale, e.Backend)
		return
	}
	if !d.nodes[e.node] {
		return
	}
	all := append(d.last[e.node], e.Backend)
	if len(all) > mostLeft {
		if oldest := all[0]; d.left[oldest] == e.node && !slices.Contains(all[1:], oldest) {
			delete(d.left, oldest)
		}
		all = all[1:]
	}
	d.left[e.Backend], d.last[e.node] = e.node, all
}

// deleteNode records the deletion of a Node.
func (d *departed) deleteNode(name string) {
	node := unique.Make(name)
	for _, b := range d.last[node] {
		if d.left[b] == node {
			d.stale = append(d.stale, b)
			delete(d.left, b)
		}
	}
	delete(d.last, node)
	delete(d.nodes, node)
	if d.onNode[node] > 0 {
		d.deleted[node] = true
	}
}

// setNode records that a Node exists.
func (d *departed) setNode(name string) {
	node := unique.Make(name)
	d.nodes[node] = true
	delete(d.deleted, node)
}

// drain returns the connections to reset, and forgets them. Endpoints that exist again are left
// out.
func (d *departed) drain(log klog.Logger) (stale []desired.StaleFlows) {
	all := slices.DeleteFunc(d.stale, func(b desired.Backend) bool { return d.listed[b] > 0 })
	d.stale = nil
	if len(all) == 0 {
		return nil
	}
	log.Info("Resetting connections to endpoints of deleted Nodes", "endpoints", len(all), "first", all[0])
	return []desired.StaleFlows{{Protocol: desired.TCP, Backends: all}}
}

// placedIn returns the TCP endpoints of a slice that say their Node, and each address with port 0, for ranges of ports.
func placedIn(s *discoveryv1.EndpointSlice) (all []placed) {
	for _, e := range s.Endpoints {
		if e.NodeName == nil || len(e.Addresses) == 0 {
			continue
		}
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			continue
		}
		at := func(port uint16) {
			all = append(all, placed{desired.NewBackend(netip.AddrPortFrom(ip.Unmap(), port)), unique.Make(*e.NodeName)})
		}
		at(0)
		for _, p := range s.Ports {
			if p.Port != nil && (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) {
				at(uint16(*p.Port))
			}
		}
	}
	return all
}
