// SPDX-License-Identifier: Apache-2.0

// Package config is the configuration of "slipstream run": kube-proxy's configuration
// (kubeproxy.config.k8s.io/v1alpha1), as kubeadm writes it, and a second document with
// Slipstream's own settings (slipstream.config/v1beta1), which may be in the same file.
//
// A configuration is decoded, completed with defaults, and validated, in this order. Each
// step is a separate function, since flags are applied between the second and the third.
// Defaults and validation are those of kube-proxy in Kubernetes 1.37, except where
// docs/configuration.md says otherwise: a file that kube-proxy accepts is accepted, and has
// the same meaning. All errors are returned at once, each with the field's path in the file.
package config

import (
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// Proxy modes of kube-proxy.
const (
	NFTables = "nftables"
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Modes returns all proxy modes of kube-proxy on Linux, in the order in which they are recommended.
func Modes() []string { return []string{NFTables, IPTables, IPVS} }

// Traits are what the configuration of a mode means and what users notice of it, in kube-proxy as in Slipstream, except for the
// first two.
type Traits struct {
	IPTables       bool // it consists of rules of iptables, which accept packets, and remember the last 100 clients of each endpoint
	FormerIPTables bool // kube-proxy's does, and leaves alone what no Service has

	NFTablesBlock   bool // its settings for masquerading are in the block nftables, and not in the block iptables
	Primary         bool // NodePorts answer on the Node object's addresses by default, and not on all
	Algorithms      bool // how endpoints are chosen can be configured, see Config.Balancing
	VirtualServers  bool // IPVS chooses endpoints, and has addresses of Services on an interface
	KernelLocalhost bool // the kernel serves NodePorts on IPv4 loopback addresses, with iptables.localhostNodePorts
	PortRanges      bool // Services can have ranges of ports, and limits of connections
	RelaysLocalhost bool // the process serves NodePorts on loopback addresses, with a feature gate

	Metrics       []string // that kube-proxy has in this mode and not in all, and Slipstream too
	RelayMetrics  []string // the same, with RelaysLocalhost and its gate
	OnlyKubeProxy []string // metrics that Slipstream does not have
}

const (
	rules    = "kubeproxy_sync_proxy_rules_"
	restores = rules + "iptables_restore_failures_total"
	full     = "kubeproxy_sync_full_proxy_rules_duration_seconds"
	partial  = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
	relays   = "kubeproxy_nftables_localhost_nodeport_"
)

var traits = map[string]Traits{
	IPTables: {
		IPTables: true, FormerIPTables: true, KernelLocalhost: true,
		Metrics: []string{restores, rules + "iptables_partial_restore_failures_total", rules + "iptables_total", rules + "iptables_last",
			"kubeproxy_iptables_ct_state_invalid_dropped_packets_total", full, partial},
		OnlyKubeProxy: []string{"kubeproxy_iptables_localhost_nodeports_accepted_packets_total"},
	},
	IPVS: {FormerIPTables: true, VirtualServers: true, Metrics: []string{restores}},
	NFTables: {
		NFTablesBlock: true, Primary: true, Algorithms: true, PortRanges: true, RelaysLocalhost: true,
		Metrics:      []string{rules + "nftables_sync_failures_total", rules + "nftables_cleanup_failures_total", full, partial},
		RelayMetrics: []string{relays + "listeners", relays + "listener_creation_failures_total", relays + "rejected_packets_total"},
	},
}

// TraitsOf returns the traits of a mode.
func TraitsOf(mode string) Traits { return traits[mode] }

// Traits are those of the mode.
func (c *Config) Traits() Traits { return traits[c.Mode()] }

// Config is the configuration of "slipstream run".
type Config struct {
	KubeProxy  kubeproxy.KubeProxyConfiguration
	Slipstream SlipstreamConfiguration

	modeUnset bool // the mode is the default
}

// New returns a configuration with the defaults that do not depend on other settings.
// [Config.Complete] sets the others.
func New() *Config {
	var c Config
	setDefaults(&c.KubeProxy)
	setOwnDefaults(&c.Slipstream)
	return &c
}

// Mode is the proxy mode.
func (c *Config) Mode() string { return string(c.KubeProxy.Mode) }

// perMode points to the settings that each mode has in its own block.
type perMode struct {
	block         string // the block's name
	masqueradeAll *bool
	masqueradeBit **int32
	syncPeriod    *metav1.Duration
	minSyncPeriod *metav1.Duration
}

// ofMode returns the settings of a mode. IPVS mode uses the masquerading settings of the
// block iptables. An unset mode uses the block iptables.
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

// MasqueradeBit is the bit of the packet mark, 0 to 31, that marks packets to be
// masqueraded.
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

// LateAfter is how long a change may be pending before the proxy is unhealthy: twice the
// sync period, as in kube-proxy.
func (c *Config) LateAfter() time.Duration {
	return 2 * ofMode(&c.KubeProxy, c.KubeProxy.Mode).syncPeriod.Duration
}

// ModeIsDefault reports whether no mode was set.
func (c *Config) ModeIsDefault() bool { return c.modeUnset }

// HandlesLocalhostNodePorts reports whether NodePorts on loopback addresses are served or
// refused in nftables mode, and counted in kube-proxy's metrics.
func (c *Config) HandlesLocalhostNodePorts() bool {
	return c.Traits().RelaysLocalhost && c.Gates().Enabled(localhostNodePorts)
}

// LocalhostNodePorts reports whether the kernel serves NodePorts on loopback addresses, which
// only iptables mode supports.
func (c *Config) LocalhostNodePorts() bool {
	return c.Traits().KernelLocalhost && *c.KubeProxy.IPTables.LocalhostNodePorts
}

// Annotated returns which Namespaces ServiceAnnotations selects by their labels; nil for all.
func (c *Config) Annotated() (func(map[string]string) bool, error) {
	text := c.Slipstream.ServiceAnnotations
	if text == "" || text == "all" {
		return nil, nil
	}
	selector, err := labels.Nothing(), error(nil)
	if text != "none" {
		selector, err = labels.Parse(text)
	}
	return func(l map[string]string) bool { return selector.Matches(labels.Set(l)) }, err
}

// Balancing returns how endpoints are chosen where the annotation of a Service does not say:
// scheduler, or in nftables mode ipvs.scheduler, unless that would give every Service a Maglev table.
// The error says why one of them is not in effect. In IPVS mode, the kernel's schedulers take the place of algorithms, and iptables mode
// has none.
func (c *Config) Balancing() (s desired.Scheduler, err error) {
	name := c.Slipstream.Scheduler
	if name == "" && c.Traits().Algorithms {
		name = c.KubeProxy.IPVS.Scheduler
	}
	if name == "" {
		return s, nil
	}
	if s, err = desired.ParseScheduler(name); err == nil && !c.Traits().Algorithms && s.Algorithm != desired.Random {
		err = fmt.Errorf("%s is not an algorithm of this proxy mode", name)
	}
	if err == nil && c.Slipstream.Scheduler == "" && s.Algorithm.Hashes() {
		err = fmt.Errorf("with %s, every Service would have a Maglev table; set scheduler if they are to, "+
			"or the annotation %s of the Services that need one", name, desired.AnnotationScheduler)
	}
	if err != nil {
		return desired.Scheduler{}, err
	}
	return s, nil
}

// FastPath returns the settings of the fast path, with threshold 0 (off) if the gate
// [Acceleration] is disabled.
func (c *Config) FastPath() FastPathConfiguration {
	f := c.Slipstream.FastPath
	if !c.Gates().Enabled(Acceleration) {
		f.OffloadPacketThreshold = new(int64)
	}
	return f
}

// maxConntrack limits the effect of maxPerCore on machines with many CPUs, as each entry
// takes memory that is not given back.
const maxConntrack = 1 << 20

// Conntrack returns the conntrack parameters for a machine with this number of CPUs.
func (c *Config) Conntrack(cpus int) sysctl.Conntrack {
	k := &c.KubeProxy.Conntrack
	out := sysctl.Conntrack{
		TCPEstablishedTimeout: ptr.Deref(k.TCPEstablishedTimeout, metav1.Duration{}).Duration,
		TCPCloseWaitTimeout:   ptr.Deref(k.TCPCloseWaitTimeout, metav1.Duration{}).Duration,
		TCPBeLiberal:          k.TCPBeLiberal,
		UDPTimeout:            k.UDPTimeout.Duration,
		UDPStreamTimeout:      k.UDPStreamTimeout.Duration,
	}
	if each := int(ptr.Deref(k.MaxPerCore, 0)); each > 0 {
		out.Max = max(each*cpus, int(ptr.Deref(k.Min, 0)))
		if each*cpus > maxConntrack {
			out.Max = maxConntrack
		}
	}
	return out
}

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
	if c.Traits().Primary && len(k.NodePortAddresses) == 0 {
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
