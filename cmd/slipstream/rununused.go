// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/spf13/pflag"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// unused tells which of the flags that were given make no difference.
func (o *runFlags) unused(fs *pflag.FlagSet) (notes []config.Note) {
	k := &o.config.KubeProxy
	fs.Visit(func(f *pflag.Flag) {
		if why := o.whyUnused(f.Name, string(k.Mode)); why != "" {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "has no effect" + why})
		}
	})
	return notes
}

// whyUnused says why a flag makes no difference in a mode; "" if it does.
func (o *runFlags) whyUnused(name, mode string) string {
	switch {
	case name == "boot-id-file" || name == "machine-id-file":
		return ", nor had it with kube-proxy"
	case name == "config-sync-period":
		return ": what is watched is not told again in between"
	case name == "show-hidden-metrics-for-version":
		return ", as there are no hidden metrics"
	case name == "iptables-localhost-nodeports" && mode != config.IPTables && *o.config.KubeProxy.IPTables.LocalhostNodePorts:
		return " in nftables mode, which does not answer on NodePorts of loopback addresses"
	case name == "iptables-masquerade-bit" && mode == config.NFTables:
		return " in nftables mode, which has --nftables-masquerade-bit"
	case name == "nftables-masquerade-bit" && mode == config.IPTables:
		return " in iptables mode, which has --iptables-masquerade-bit"
	case strings.HasPrefix(name, "ipvs-") && name != "ipvs-exclude-cidrs" && mode != config.IPVS:
		return " in another mode than ipvs"
	}
	return ""
}

// standAlone has a proxy whose objects come from manifests, and that has no
// configuration file, leave the machine as it is but for what it is told by flags:
// nothing is served, and no parameter of the kernel or of this process is set.
func standAlone(k *kubeproxy.KubeProxyConfiguration, given func(flag string) bool) {
	if !given("healthz-bind-address") {
		k.HealthzBindAddress = ""
	}
	if !given("metrics-bind-address") {
		k.MetricsBindAddress = ""
	}
	if !given("oom-score-adj") {
		k.OOMScoreAdj = nil
	}
	if !given("conntrack-max-per-core") && !given("conntrack-min") {
		k.Conntrack.MaxPerCore = ptr.To[int32](0)
	}
	if !given("conntrack-tcp-timeout-established") {
		k.Conntrack.TCPEstablishedTimeout.Duration = 0
	}
	if !given("conntrack-tcp-timeout-close-wait") {
		k.Conntrack.TCPCloseWaitTimeout.Duration = 0
	}
}
