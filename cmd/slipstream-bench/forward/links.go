// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"strings"

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

// arrived is how many packets have arrived on a machine's interfaces. What is
// aggregated counts as one.
func arrived(m *lab.Machine) (n uint64, err error) {
	err = eachLink(m, func(a *netlink.LinkAttrs) { n += a.Statistics.RxPackets })
	return n, err
}

// aggregation are the features of an interface that let many packets of a
// connection be one on their way through the stack, by the kernel's names.
var aggregation = []string{
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-generic-segmentation", "tx-udp-segmentation", "tx-gso-list", "rx-gro", "rx-gro-list",
}

// separate switches aggregation off on the pods' interfaces: GSO, TSO and GRO.
// The function that it returns undoes that.
func (w *world) separate() (undo func() error, err error) {
	changed := map[*lab.Pod]map[string]bool{}
	set := func() error {
		for pod, features := range changed {
			err := pod.Do(func() error {
				e, err := ethtool.NewEthtool()
				if err != nil {
					return err
				}
				defer e.Close()
				return e.Change(podLink, features)
			})
			if err != nil {
				return fmt.Errorf("pod %s: %s: segmentation offloads: %w", pod.Name(), podLink, err)
			}
		}
		return nil
	}
	for _, pod := range []*lab.Pod{w.client, w.server} {
		on, err := aggregating(pod)
		if err != nil {
			return nil, err
		}
		changed[pod] = map[string]bool{}
		for _, name := range on {
			changed[pod][name] = false
		}
	}
	if err := set(); err != nil {
		return nil, err
	}
	for pod := range changed {
		on, err := aggregating(pod)
		if err == nil && len(on) > 0 {
			err = fmt.Errorf("pod %s: %s: still on: %s", pod.Name(), podLink, strings.Join(on, ", "))
		}
		if err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, features := range changed {
			for name := range features {
				features[name] = true
			}
		}
		return set()
	}, nil
}

// aggregating are the features of aggregation that are on at a pod's interface.
func aggregating(pod *lab.Pod) (on []string, err error) {
	err = pod.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		features, err := e.Features(podLink)
		for _, name := range aggregation {
			if features[name] {
				on = append(on, name)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %s: features: %w", pod.Name(), podLink, err)
	}
	return on, nil
}
