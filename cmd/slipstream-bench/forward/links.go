// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"

	"github.com/safchain/ethtool"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
)

// podLink is a pod's interface.
const podLink = "eth0"

// eachLink calls f with all interfaces of a machine but lo.
func eachLink(m *lab.Machine, f func(*netlink.LinkAttrs)) error {
	return m.Do(func() error {
		all, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("%s: list of interfaces: %w", m.Name(), err)
		}
		for _, l := range all {
			if a := l.Attrs(); a.Name != "lo" {
				f(a)
			}
		}
		return nil
	})
}

// arrived is how many packets have arrived on a machine's interfaces. Aggregated packets
// count as one.
func arrived(m *lab.Machine) (n uint64, err error) {
	err = eachLink(m, func(a *netlink.LinkAttrs) { n += a.Statistics.RxPackets })
	return n, err
}

// aggregation are the features of an interface by which many packets of a connection pass
// the stack as one, by the kernel's names.
var aggregation = []string{
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-generic-segmentation", "tx-udp-segmentation", "tx-gso-list", "rx-gro", "rx-gro-list",
}

// disableAggregation disables GSO, TSO and GRO on the pods' interfaces, until restore.
func (n *network) disableAggregation() (restore func() error, err error) {
	change := func(pod *lab.Pod, names []string, on bool) (still []string, err error) {
		err = pod.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			features := map[string]bool{}
			for _, name := range names {
				features[name] = on
			}
			if len(features) > 0 {
				if err := e.Change(podLink, features); err != nil {
					return err
				}
			}
			now, err := e.Features(podLink)
			for _, name := range aggregation {
				if now[name] {
					still = append(still, name)
				}
			}
			return err
		})
		if err != nil {
			err = fmt.Errorf("pod %s: %s: segmentation offloads: %w", pod.Name(), podLink, err)
		}
		return still, err
	}
	enabled := map[*lab.Pod][]string{}
	for _, pod := range []*lab.Pod{n.client, n.server} {
		if enabled[pod], err = change(pod, nil, false); err != nil {
			return nil, err
		}
		still, err := change(pod, enabled[pod], false)
		if err == nil && len(still) > 0 {
			err = fmt.Errorf("pod %s: %s: %v cannot be disabled", pod.Name(), podLink, still)
		}
		if err != nil {
			return nil, err
		}
	}
	return func() error {
		for pod, names := range enabled {
			if _, err := change(pod, names, true); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
