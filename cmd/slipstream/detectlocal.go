// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/spf13/cobra"
)

// detectLocalFlags say how traffic of this node's pods is recognized.
type detectLocalFlags struct {
	mode        string
	clusterCIDR string
	bridge      string
	prefix      string
}

// detectLocalModes are the values of --detect-local-mode.
var detectLocalModes = []string{
	desired.ByClusterCIDR:         "ClusterCIDR",
	desired.ByNodeCIDR:            "NodeCIDR",
	desired.ByBridgeInterface:     "BridgeInterface",
	desired.ByInterfaceNamePrefix: "InterfaceNamePrefix",
}

func (o *detectLocalFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.mode, "detect-local-mode", detectLocalModes[desired.ByClusterCIDR], "how to tell that traffic comes from a pod of this node: "+strings.Join(detectLocalModes, ", "))
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "range of pod addresses, or two of different families, comma-separated")
	f.StringVar(&o.bridge, "pod-bridge-interface", "", "bridge that this node's pods are on")
	f.StringVar(&o.prefix, "pod-interface-name-prefix", "", "what the names of this node's pods' interfaces start with")
}

// config checks the flags.
func (o *detectLocalFlags) config() (d desired.DetectLocal, err error) {
	mode := slices.Index(detectLocalModes, o.mode)
	if mode < 0 {
		return d, fmt.Errorf("--detect-local-mode: %q is none of %s", o.mode, strings.Join(detectLocalModes, ", "))
	}
	cidrs, err := o.clusterCIDRs() // a mistake is one even where it is not used
	d.Mode = desired.DetectLocalMode(mode)
	switch {
	case err != nil:
	case d.Mode == desired.ByClusterCIDR:
		d.CIDRs = cidrs
	case d.Mode == desired.ByBridgeInterface:
		d.Interface = o.bridge
		err = o.checkInterface("pod-bridge-interface", d.Interface)
	case d.Mode == desired.ByInterfaceNamePrefix:
		d.Interface = o.prefix
		err = o.checkInterface("pod-interface-name-prefix", d.Interface)
	}
	return d, err
}

// clusterCIDRs are the ranges of --cluster-cidr, at most one of each family.
func (o *detectLocalFlags) clusterCIDRs() (all []netip.Prefix, err error) {
	if o.clusterCIDR == "" {
		return nil, nil
	}
	for _, text := range strings.Split(o.clusterCIDR, ",") {
		p, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--cluster-cidr: %w", err)
		}
		for _, q := range all {
			if p.Addr().Is4() == q.Addr().Is4() {
				return nil, fmt.Errorf("--cluster-cidr: %s and %s are of the same family", q, p)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// maxInterface is the most bytes that an interface's name has: IFNAMSIZ less the
// final zero.
const maxInterface = 15

// checkInterface checks an interface's name, or the beginning of one.
func (o *detectLocalFlags) checkInterface(flag, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("--%s: must be given with --detect-local-mode %s", flag, o.mode)
	case len(name) > maxInterface:
		return fmt.Errorf("--%s: %q is longer than the %d bytes that the name of an interface has at most", flag, name, maxInterface)
	case strings.ContainsAny(name, "/: \t\n"):
		return fmt.Errorf("--%s: %q has a character that the name of an interface cannot have", flag, name)
	}
	return nil
}
