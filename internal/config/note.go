// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Note is a remark for the log about a valid configuration, for example that a setting
// has no effect.
type Note struct {
	Field string // its path in the file; "" if the note is about several fields
	Text  string

	// Verbosity is the log verbosity at which the note is logged. It is 0 if the
	// operator probably set the field on purpose.
	Verbosity int
}

// String returns the field and the text.
func (n Note) String() string {
	if n.Field == "" {
		return n.Text
	}
	return n.Field + ": " + n.Text
}

// Reasons why a setting has no effect.
const (
	onWindows   = "has no effect on Linux"
	unusedSince = "has no effect, as in kube-proxy"
	resync      = "has no effect: watched objects are not delivered again periodically"
	noHidden    = "has no effect, as there are no hidden metrics"
)

// unused returns notes about settings without effect. It expects a configuration without
// defaults.
func (c *Config) unused() (notes []Note) {
	k := &c.KubeProxy
	for _, f := range []struct {
		set       bool
		path, why string
	}{
		{k.WindowsRunAsService, "windowsRunAsService", onWindows},
		{k.Winkernel != kubeproxy.KubeProxyWinkernelConfiguration{}, "winkernel", onWindows},
		{k.PortRange != "", "portRange", unusedSince},
		{k.ConfigSyncPeriod.Duration != 0 && k.ConfigSyncPeriod.Duration != 15*time.Minute, "configSyncPeriod", resync},
		{k.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", noHidden},
	} {
		if f.set {
			notes = append(notes, Note{Field: f.path, Text: f.why})
		}
	}
	return append(notes, unusedOfModes(k)...)
}

func unusedOfModes(k *kubeproxy.KubeProxyConfiguration) (notes []Note) {
	t := traits[string(k.Mode)]
	if v := k.IPVS; !t.VirtualServers && (v.Scheduler != "" || v.StrictARP || v.TCPTimeout.Duration != 0 || v.TCPFinTimeout.Duration != 0 || v.UDPTimeout.Duration != 0) {
		notes = append(notes, Note{Field: "ipvs", Text: "has no effect in other modes, except excludeCIDRs, and scheduler in nftables mode"})
	}
	if k.Mode != "" && !t.NFTablesBlock {
		return notes
	}
	if l := k.IPTables.LocalhostNodePorts; l != nil && *l {
		// kube-proxy writes this default to its file, so it is seldom set on purpose.
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

// ModeUnset is the note for a mode that is not set; see [Config.Complete].
const ModeUnset = "is not set: using nftables with the settings for iptables mode"

const noLocalhost = "has no effect in nftables mode, which has the feature gate " + localhostNodePorts

// Notes returns notes about a complete and valid configuration.
func (c *Config) Notes() (notes []Note) {
	for _, name := range slices.Sorted(maps.Keys(c.KubeProxy.FeatureGates)) {
		if !knowsGate(name) {
			notes = append(notes, Note{Field: fmt.Sprintf("featureGates[%s]", name), Text: "has no effect: kube-proxy " + KubernetesVersion + " has no such gate"})
		} else if !slices.Contains(effective, name) {
			notes = append(notes, Note{
				Field: fmt.Sprintf("featureGates[%s]", name), Text: "has no effect on Slipstream", Verbosity: 1,
			})
		}
	}
	notes = append(notes, c.unknownPods()...)
	if _, err := c.Balancing(); err != nil {
		name := map[bool]string{true: "ipvs.scheduler", false: "scheduler"}[c.Slipstream.Scheduler == ""]
		notes = append(notes, Note{Field: name, Text: "has no effect: " + err.Error()})
	}
	all, primary := c.NodePortRanges()
	if other := missingFamily(all); !primary && (other == "IPv4" || other == "IPv6") {
		has := map[string]string{"IPv4": "IPv6", "IPv6": "IPv4"}[other]
		notes = append(notes, Note{Field: "nodePortAddresses", Text: fmt.Sprintf("has ranges of %s only, so NodePorts answer on all %s addresses", has, other)})
	}
	unserved := slices.DeleteFunc(all, func(p netip.Prefix) bool {
		only := p.Addr().IsLoopback() && (p.Addr().Is6() || p.Bits() >= 8) // loopback addresses
		return c.HandlesLocalhostNodePorts() || c.LocalhostNodePorts() && p.Addr().Is4() || !only
	})
	if len(unserved) > 0 {
		notes = append(notes, Note{Field: "nodePortAddresses", Text: fmt.Sprint("NodePorts do not answer on loopback addresses: ", unserved)})
	}
	return notes
}

// missingFamily names the families of which there is no range; "" if there is one of each.
func missingFamily(ranges []netip.Prefix) string {
	var has4, has6 bool
	for _, p := range ranges {
		has4, has6 = has4 || p.Addr().Is4(), has6 || p.Addr().Is6()
	}
	switch {
	case has4 && has6:
		return ""
	case has4:
		return "IPv6"
	case has6:
		return "IPv4"
	}
	return "IPv4 or IPv6"
}

// unknownPods returns a note about the families for which clusterCIDR has no range, so
// that traffic of pods is not recognized. Clusters with one family only are common.
func (c *Config) unknownPods() []Note {
	missing := missingFamily(ClusterCIDRs(&c.KubeProxy))
	if missing == "" || c.KubeProxy.DetectLocalMode != "ClusterCIDR" {
		return nil
	}
	note := Note{
		Field: "clusterCIDR", Verbosity: 2,
		Text: fmt.Sprintf("has no range of %s, so traffic from pods is not recognized (detectLocalMode ClusterCIDR) and traffic to ClusterIPs from outside the cluster is not masqueraded", missing),
	}
	if missing == "IPv4 or IPv6" {
		note.Verbosity = 0
	}
	return []Note{note}
}
