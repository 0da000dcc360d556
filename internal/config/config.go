// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Modes of kube-proxy.
const (
	NFTables = "nftables"
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Modes are all of kube-proxy's on Linux.
func Modes() []string { return []string{IPTables, IPVS, NFTables} }

// Config is everything that "slipstream run" is told.
type Config struct {
	KubeProxy  kubeproxy.KubeProxyConfiguration
	Slipstream SlipstreamConfiguration

	modeUnset bool // the mode is the default
}

// New is a configuration in which nothing has been set, with the defaults that do
// not depend on anything that may still be set. See [Config.Complete].
func New() *Config {
	var c Config
	setDefaults(&c.KubeProxy)
	setOwnDefaults(&c.Slipstream)
	return &c
}

// Mode is the proxy mode.
func (c *Config) Mode() string { return string(c.KubeProxy.Mode) }

// perMode are the settings that each mode has in a block of its own.
type perMode struct {
	block         string // the block's name
	masqueradeAll *bool
	masqueradeBit **int32
	syncPeriod    *metav1.Duration
	minSyncPeriod *metav1.Duration
}

// ofMode are the settings of a mode. IPVS mode takes those for masquerading from
// the block for iptables, as does a mode that is not set.
func ofMode(c *kubeproxy.KubeProxyConfiguration, mode kubeproxy.ProxyMode) perMode {
	switch mode {
	case NFTables:
		b := &c.NFTables
		return perMode{"nftables", &b.MasqueradeAll, &b.MasqueradeBit, &b.SyncPeriod, &b.MinSyncPeriod}
	case IPVS:
		b := &c.IPTables
		return perMode{"ipvs", &b.MasqueradeAll, &b.MasqueradeBit, &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod}
	}
	b := &c.IPTables
	return perMode{"iptables", &b.MasqueradeAll, &b.MasqueradeBit, &b.SyncPeriod, &b.MinSyncPeriod}
}

// MasqueradeAll says whether to masquerade all traffic to ClusterIPs.
func (c *Config) MasqueradeAll() bool {
	return *ofMode(&c.KubeProxy, c.KubeProxy.Mode).masqueradeAll
}

// AllowExternalIPs says whether spec.externalIPs of Services is programmed.
func (c *Config) AllowExternalIPs() bool { return c.Gates().Enabled(externalIPs) }

// MasqueradeBit is the bit of the packet mark, 0 to 31, that is set on what is to
// be masqueraded.
func (c *Config) MasqueradeBit() int {
	return int(**ofMode(&c.KubeProxy, c.KubeProxy.Mode).masqueradeBit)
}

// MinSyncPeriod is the least time between two updates of the kernel.
func (c *Config) MinSyncPeriod() time.Duration {
	if d := c.Slipstream.MinSyncPeriod; d != nil {
		return d.Duration
	}
	return ofMode(&c.KubeProxy, c.KubeProxy.Mode).minSyncPeriod.Duration
}

// LateAfter is how long a change may wait until the proxy is not healthy: twice the
// sync period, as with kube-proxy.
func (c *Config) LateAfter() time.Duration {
	return 2 * ofMode(&c.KubeProxy, c.KubeProxy.Mode).syncPeriod.Duration
}

// CheckPeriod is how often to look for damage.
func (c *Config) CheckPeriod() time.Duration { return c.Slipstream.CheckPeriod.Duration }

// VerifyPeriod is how often to compare all that the kernel has with what was
// programmed; 0 for never.
func (c *Config) VerifyPeriod() time.Duration { return c.Slipstream.VerifyPeriod.Duration }

// LocalhostNodePorts says whether NodePorts are to answer on loopback addresses,
// which only iptables mode can.
func (c *Config) LocalhostNodePorts() bool {
	return c.KubeProxy.Mode == IPTables && *c.KubeProxy.IPTables.LocalhostNodePorts
}
