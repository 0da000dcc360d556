// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"regexp"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
)

// kubeProxy is the owner of kube-proxy's chains.
var kubeProxy = iptchains.Owner{
	Name:    "kube-proxy",
	Owns:    isKubeProxy,
	Entered: func(chain string) bool { return slices.Contains(entered, chain) },
}

// entered are kube-proxy's chains to which it jumps from built-in chains.
var entered = []string{
	"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING",
	"KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
	// In IPVS mode.
	"KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
}

// inner are its other chains with fixed names.
var inner = []string{
	"KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
	// In IPVS mode; KUBE-FIRE-WALL up to Kubernetes 1.26.
	"KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-FIRE-WALL",
}

// serviceChain matches its chains for Services and endpoints, with a hash in base 32;
// KUBE-XLB- up to Kubernetes 1.23.
var serviceChain = regexp.MustCompile(`^KUBE-(SVC|SVL|EXT|FW|SEP|XLB)-[A-Z2-7]{16}$`)

// isKubeProxy reports whether a chain of iptables is kube-proxy's.
func isKubeProxy(chain string) bool {
	return slices.Contains(entered, chain) || slices.Contains(inner, chain) || serviceChain.MatchString(chain)
}

// ipsets are the sets of IPVS mode, without the prefixes for IPv4 and IPv6.
var ipsets = []string{
	"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL",
	"LOAD-BALANCER", "LOAD-BALANCER-FW", "LOAD-BALANCER-LOCAL",
	"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
	"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
	"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH",
	"HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
}

// dummy is the interface of IPVS mode that has the Services' addresses.
const dummy = "kube-ipvs0"
