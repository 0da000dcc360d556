// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Note is something that an operator is to know about a configuration that is
// otherwise good: a setting that makes no difference, for example.
type Note struct {
	Field string // its path in the file; "" where it is about no single field
	Text  string

	// Verbosity of the log from which on it is worth telling: 0 for what the
	// operator is likely to have meant something by.
	Verbosity int
}

// String is the field and the text.
func (n Note) String() string {
	if n.Field == "" {
		return n.Text
	}
	return n.Field + ": " + n.Text
}

// Why a setting makes no difference.
const (
	onWindows   = "has no effect, as it is about Windows"
	unusedSince = "has no effect, as kube-proxy does not use it any more either"
	resync      = "has no effect: what is watched is not told again in between"
	noHidden    = "has no effect, as there are no hidden metrics"
)

// unused tells which settings make no difference. It is about a configuration
// without defaults.
func (c *Config) unused() (notes []Note) {
	k := &c.KubeProxy
	for _, f := range []struct {
		set  bool
		path string
		why  string
	}{
		{k.WindowsRunAsService, "windowsRunAsService", onWindows},
		{k.Winkernel != kubeproxy.KubeProxyWinkernelConfiguration{}, "winkernel", onWindows},
		{k.PortRange != "", "portRange", unusedSince},
		{unusual(k.ConfigSyncPeriod.Duration, 15*time.Minute), "configSyncPeriod", resync},
		{k.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", noHidden},
	} {
		if f.set {
			notes = append(notes, Note{Field: f.path, Text: f.why})
		}
	}
	notes = append(notes, unusedOfModes(k)...)
	return notes
}

// unusedOfModes tells which settings of modes make no difference.
func unusedOfModes(k *kubeproxy.KubeProxyConfiguration) (notes []Note) {
	if v := k.IPVS; k.Mode != IPVS && (v.Scheduler != "" || v.StrictARP || v.TCPTimeout.Duration != 0 || v.TCPFinTimeout.Duration != 0 || v.UDPTimeout.Duration != 0) {
		notes = append(notes, Note{Field: "ipvs", Text: "has no effect in another mode, but for excludeCIDRs"})
	}
	if k.Mode == IPTables {
		return notes
	}
	if l := k.IPTables.LocalhostNodePorts; l != nil && *l {
		// kube-proxy writes this default out, so it is seldom meant.
		notes = append(notes, Note{Field: "iptables.localhostNodePorts", Text: noLocalhost, Verbosity: 1})
	}
	if k.Mode == "" {
		return append(notes, Note{Field: "mode", Text: ModeUnset})
	}
	if k.IPTables.MasqueradeAll && !k.NFTables.MasqueradeAll {
		notes = append(notes, Note{Field: "iptables.masqueradeAll", Text: "has no effect in nftables mode, which has nftables.masqueradeAll"})
	}
	return notes
}

// ModeUnset is what a mode that is not set means; see [Config.Complete].
const ModeUnset = "is not set, so it is nftables, with what is configured for iptables mode"

const noLocalhost = "has no effect in nftables mode, which does not answer on NodePorts of loopback addresses"

// unusual says whether a period is set to something that is not the default.
func unusual(d, usual time.Duration) bool { return d != 0 && d != usual }

// Notes tells what is to be known of a complete and valid configuration.
func (c *Config) Notes() (notes []Note) {
	for _, name := range slices.Sorted(maps.Keys(c.KubeProxy.FeatureGates)) {
		if !effective[name] {
			notes = append(notes, Note{
				Field: fmt.Sprintf("featureGates[%s]", name), Text: "makes no difference to Slipstream", Verbosity: 1,
			})
		}
	}
	notes = append(notes, c.unknownPods()...)
	var ranges [2]bool // of IPv4, IPv6
	for _, text := range c.KubeProxy.NodePortAddresses {
		if p, ok := ParseRange(text); ok {
			ranges[p.Addr().BitLen()/128] = true
		}
	}
	if ranges[0] != ranges[1] {
		has, other := "IPv4", "IPv6"
		if ranges[1] {
			has, other = other, has
		}
		notes = append(notes, Note{Field: "nodePortAddresses", Text: fmt.Sprintf("has ranges of %s only, so NodePorts answer on all %s addresses", has, other)})
	}
	return notes
}

// unknownPods tells of which families no traffic can be taken for that of pods, for
// want of a range. A cluster may well have one family only.
func (c *Config) unknownPods() (notes []Note) {
	if c.KubeProxy.DetectLocalMode != "ClusterCIDR" {
		return nil
	}
	note := func(of string, verbosity int) []Note {
		return []Note{{
			Field: "clusterCIDR", Verbosity: verbosity,
			Text: fmt.Sprintf("has no range of %s, so no such traffic counts as that of pods (detectLocalMode ClusterCIDR), and none to ClusterIPs is masqueraded for coming from elsewhere", of),
		}}
	}
	var ranges [2]bool // of IPv4, IPv6
	for _, p := range ClusterCIDRs(&c.KubeProxy) {
		ranges[p.Addr().BitLen()/128] = true
	}
	switch ranges {
	case [2]bool{false, false}:
		return note("IPv4 or IPv6", 0)
	case [2]bool{true, false}:
		return note("IPv6", 2)
	case [2]bool{false, true}:
		return note("IPv4", 2)
	}
	return nil
}
