// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
)

// groAlias is the alias of interfaces where Slipstream has switched GRO on. It lives as long as the interface, so that
// after a crash it is still known what to switch off.
const groAlias = "GRO switched on by slipstream"

const gro = "rx-gro"

// switchGRO switches GRO on at the node's ends of veths where on says so, and off at other interfaces where Slipstream
// has switched it on.
func (c *Controller) switchGRO(all []netif.Interface, on func(index int) bool) error {
	var errs []error
	for _, i := range all {
		wanted, ours := i.Type == "veth" && i.Netns >= 0 && on(i.Index), i.Alias == groAlias
		if wanted == ours || wanted && i.Alias != "" { // another's alias stays
			continue
		}
		if err := dataplane.Inside(c.config.NetNS, func() error { return setGRO(&i, wanted) }); err != nil {
			errs = append(errs, fmt.Errorf("interface %s: GRO: %w", i.Name, err))
		}
	}
	return errors.Join(errs...)
}

// setGRO switches GRO in the calling thread's namespace. What another program has switched on is left alone.
func setGRO(i *netif.Interface, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i.Index}}
	if !on {
		err := e.Change(i.Name, map[string]bool{gro: false})
		if err == nil {
			err = netlink.LinkSetAlias(link, "\x00") // the kernel refuses an attribute of no length
		}
		return err
	}
	features, err := e.Features(i.Name)
	if err != nil || features[gro] {
		return err
	}
	if err := netlink.LinkSetAlias(link, groAlias); err != nil {
		return err
	}
	return e.Change(i.Name, map[string]bool{gro: true})
}
