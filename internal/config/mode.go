// SPDX-License-Identifier: Apache-2.0

package config

import kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

// Primary is the value of nodePortAddresses that stands for the Node's own
// addresses.
const Primary = "primary"

// Complete fills in what depends on the mode.
//
// kube-proxy is in iptables mode where no mode is set. Slipstream is in nftables
// mode, and keeps to what the configuration meant there: the settings of the
// block "iptables" hold, where the block "nftables" does not say otherwise, and
// NodePorts answer on all of the node's addresses unless nodePortAddresses is set.
func (c *Config) Complete() {
	k := &c.KubeProxy
	if k.Mode == "" {
		c.modeUnset = true
		inherit(ofMode(k, NFTables), ofMode(k, IPTables))
		if len(k.NodePortAddresses) == 0 {
			k.NodePortAddresses = []string{"0.0.0.0/0", "::/0"}
		}
		k.Mode = NFTables
	}
	if k.Mode == NFTables && len(k.NodePortAddresses) == 0 {
		k.NodePortAddresses = []string{Primary}
	}
	set(&k.DetectLocalMode, detectLocalModes[0])
}

// FallBack changes a complete configuration in which no mode was set to iptables mode,
// which kube-proxy would run. It says whether it has.
func (c *Config) FallBack() bool {
	if !c.modeUnset || c.KubeProxy.Mode == IPTables {
		return false
	}
	c.KubeProxy.Mode = IPTables
	return true
}

// inherit sets what a mode has not set as another has.
func inherit(to, from perMode) {
	*to.masqueradeAll = *to.masqueradeAll || *from.masqueradeAll
	set(to.masqueradeBit, copied(*from.masqueradeBit))
	set(to.syncPeriod, *from.syncPeriod)
	set(to.minSyncPeriod, *from.minSyncPeriod)
}

// detectLocalModes are the values of detectLocalMode, the default first.
var detectLocalModes = []kubeproxy.LocalMode{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}
