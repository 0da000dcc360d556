// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

// Host is a machine outside the cluster, on the fabric. It has no default
// route and no routes to pods or ClusterIPs unless it is given some.
type Host struct{ Machine }

// Host adds an outside host with one address, or one of each family, with the
// length of the fabric's subnet; see NodeOptions.Addresses.
func (l *Lab) Host(name string, addrs ...netip.Prefix) (*Host, error) {
	l.build.Lock()
	defer l.build.Unlock()
	if err := onePerFamily("address", addrs); err != nil {
		return nil, fmt.Errorf("lab: host %s: %w", name, err)
	}
	h := &Host{}
	if err := l.add(&h.Machine, "host", name, endProfile); err != nil {
		return nil, err
	}
	if err := l.fabric.attach(&h.Machine, addrs); err != nil {
		h.close()
		return nil, h.wrap(err)
	}
	return h, nil
}

// RouteToPods gives the host routes to the pod CIDRs of all nodes, including nodes that are
// added later.
func (h *Host) RouteToPods() error {
	h.lab.build.Lock()
	defer h.lab.build.Unlock()
	h.routesToPods = true
	for _, m := range h.lab.onFabric() {
		if err := h.addPodRoutes(m); err != nil {
			return h.wrap(err)
		}
	}
	return nil
}
