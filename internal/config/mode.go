// SPDX-License-Identifier: Apache-2.0

package config

import kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

// Complete sets the defaults that depend on the mode.
//
// If no mode is set, kube-proxy uses iptables mode. Slipstream uses nftables mode with the
// same meaning of the other settings: the block "iptables" applies where the block
// "nftables" does not set a field, and NodePorts are reachable on all of the node's
// addresses unless nodePortAddresses is set.
func (c *Config) Complete() {
	k := &c.KubeProxy
	if k.Mode == "" {
		c.modeUnset = true
		inherit(ofMode(k, NFTables), ofMode(k, IPTables))
		if len(k.NodePortAddresses) == 0 {
			k.NodePortAddresses = []string{All}
		}
		k.Mode = NFTables
	}
	if k.Mode == NFTables && len(k.NodePortAddresses) == 0 {
		k.NodePortAddresses = []string{Primary}
	}
	set(&k.DetectLocalMode, detectLocalModes[0])
}

// FallBack changes a complete configuration without a mode to iptables mode, kube-proxy's
// default. It reports whether it did.
func (c *Config) FallBack() bool {
	if !c.modeUnset || c.KubeProxy.Mode == IPTables {
		return false
	}
	c.KubeProxy.Mode = IPTables
	return true
}

// inherit copies settings that a mode has not set from another mode.
func inherit(to, from perMode) {
	*to.masqueradeAll = *to.masqueradeAll || *from.masqueradeAll
	set(to.masqueradeBit, copied(*from.masqueradeBit))
	set(to.syncPeriod, *from.syncPeriod)
	set(to.minSyncPeriod, *from.minSyncPeriod)
}

// detectLocalModes are the values of detectLocalMode, the default first.
var detectLocalModes = []kubeproxy.LocalMode{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}
