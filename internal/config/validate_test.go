// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"testing"
)

// TestValidate checks that each mistake gives one error, with the field's path.
func TestValidate(t *testing.T) {
	type table map[string]string // what is in the file, to the error
	for mode, mistakes := range map[string]table{
		NFTables: {
			"bindAddress: 10.0.0.1:80":                `bindAddress: Invalid value: "10.0.0.1:80": must be an IP address`,
			"clientConnection: {burst: -1}":           "clientConnection.burst: Invalid value: -1: must not be negative",
			"clusterCIDR: 10.0.0.0":                   `clusterCIDR: Invalid value: "10.0.0.0": must be a range`,
			"clusterCIDR: 10.0.0.0/8,":                `clusterCIDR: Invalid value: "": must be a range`,
			"clusterCIDR: 10.0.0.0/8,10.1.0.0/16":     "clusterCIDR: Invalid value: \"10.0.0.0/8,10.1.0.0/16\": 10.0.0.0/8 and 10.1.0.0/16 are of the same family",
			"configSyncPeriod: -1s":                   `configSyncPeriod: Invalid value: "-1s": must be greater than 0`,
			"conntrack: {maxPerCore: -1}":             "conntrack.maxPerCore: Invalid value: -1: must not be negative",
			"conntrack: {min: -1}":                    "conntrack.min: Invalid value: -1",
			"conntrack: {tcpEstablishedTimeout: -1s}": `conntrack.tcpEstablishedTimeout: Invalid value: "-1s"`,
			"conntrack: {tcpCloseWaitTimeout: -1s}":   `conntrack.tcpCloseWaitTimeout: Invalid value: "-1s"`,
			"conntrack: {udpTimeout: -1s}":            `conntrack.udpTimeout: Invalid value: "-1s"`,
			"conntrack: {udpStreamTimeout: -1s}":      `conntrack.udpStreamTimeout: Invalid value: "-1s"`,
			"detectLocalMode: Guess":                  `detectLocalMode: Unsupported value: "Guess": supported values: "ClusterCIDR"`,
			"detectLocalMode: BridgeInterface":        "detectLocal.bridgeInterface: Required value",
			"detectLocalMode: InterfaceNamePrefix":    "detectLocal.interfaceNamePrefix: Required value",
			"detectLocal: {bridgeInterface: sixteen-bytes-xx}\ndetectLocalMode: BridgeInterface": "detectLocal.bridgeInterface: Too long: may not be more than 15",
			"detectLocal: {interfaceNamePrefix: a/b}\ndetectLocalMode: InterfaceNamePrefix":      `detectLocal.interfaceNamePrefix: Invalid value: "a/b": contains a character`,
			"featureGates: {MultiCIDRServiceAllocator: false}":                                   "featureGates[MultiCIDRServiceAllocator]: Invalid value: false: must be true",
			"healthzBindAddress: localhost:1":                                                    `healthzBindAddress: Invalid value: "localhost:1": "localhost" is not an IP address`,
			"healthzBindAddress: 1.2.3.4:0":                                                      `healthzBindAddress: Invalid value: "1.2.3.4:0": "0" is not a port`,
			"metricsBindAddress: 1.2.3:4:5":                                                      `metricsBindAddress: Invalid value: "1.2.3:4:5": must be an IP address and a port`,
			"metricsBindAddress: '[::1]:x'":                                                      `metricsBindAddress: Invalid value: "[::1]:x": "x" is not a port`,
			"metricsBindAddress: 1.2.3.4:65536":                                                  `"65536" is not a port`,
			"bindAddress: fe80::1%eth0":                                                          `bindAddress: Invalid value: "fe80::1%eth0": must be an IP address`,
			"ipvs: {excludeCIDRs: [10.0.0.0/8, nonsense]}":                                       `ipvs.excludeCIDRs[1]: Invalid value: "nonsense": must be a range`,
			"iptables: {masqueradeBit: 32}":                                                      "iptables.masqueradeBit: Invalid value: 32: must be from 0 to 31",
			"nftables: {masqueradeBit: -1}":                                                      "nftables.masqueradeBit: Invalid value: -1: must be from 0 to 31",
			"nftables: {syncPeriod: -1s}":                                                        `nftables.syncPeriod: Invalid value: "-1s": must be greater than 0`,
			"nftables: {minSyncPeriod: -1s}":                                                     `nftables.minSyncPeriod: Invalid value: "-1s": must not be negative`,
			"nftables: {minSyncPeriod: 31s}":                                                     `nftables.minSyncPeriod: Invalid value: "31s": must not be greater than nftables.syncPeriod (30s)`,
			"nodePortAddresses: [10.0.0.0/8, 10.0.0.1]":                                          `nodePortAddresses[1]: Invalid value: "10.0.0.1": must be a range`,
			"nodePortAddresses: [10.0.0.0/8, Localhost]":                                         `nodePortAddresses[1]: Invalid value: "Localhost": must be a range of addresses such as 10.244.0.0/16 or fd00:244::/32, or primary, localhost or all`,
			"nodePortAddresses: [all, 10.0.0.0/8, all]":                                          `nodePortAddresses[2]: Duplicate value: "all"`,
			"oomScoreAdj: 1001":                                                                  "oomScoreAdj: Invalid value: 1001: must be from -1000 to 1000",
			"oomScoreAdj: -1001":                                                                 "oomScoreAdj: Invalid value: -1001",
			"showHiddenMetricsForVersion: '1.35'":                                                `showHiddenMetricsForVersion: Invalid value: "1.35": must be empty or 1.36`,
			"logging: {format: xml}":                                                             `logging.format: Invalid value: "xml": Unsupported log format`,
			"logging: {flushFrequency: -1s}":                                                     "logging.flushFrequency: Invalid value",
			"logging: {verbosity: 3000000000}":                                                   "logging.verbosity: Invalid value: 3000000000",
			"logging: {options: {text: {splitStream: true}}}":                                    "logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
		},
		IPTables: {
			"iptables: {minSyncPeriod: -1s}": `iptables.minSyncPeriod: Invalid value: "-1s"`,
			"iptables: {syncPeriod: -1s}":    `iptables.syncPeriod: Invalid value: "-1s"`,
		},
		IPVS: {
			"ipvs: {syncPeriod: -1s}":              `ipvs.syncPeriod: Invalid value: "-1s": must be greater than 0`,
			"ipvs: {tcpTimeout: -1s}":              `ipvs.tcpTimeout: Invalid value: "-1s": must not be negative`,
			"ipvs: {tcpFinTimeout: -1s}":           `ipvs.tcpFinTimeout: Invalid value: "-1s"`,
			"ipvs: {udpTimeout: -1s}":              `ipvs.udpTimeout: Invalid value: "-1s"`,
			"featureGates: {KubeProxyIPVS: false}": `mode: Invalid value: "ipvs": is disabled by the feature gate KubeProxyIPVS: must be one of iptables, nftables`,
		},
		"kernelspace": {"": `mode: Invalid value: "kernelspace": must be one of iptables, ipvs, nftables`},
	} {
		for text, want := range mistakes {
			wantError(t, kubeProxyDoc+"mode: "+mode+"\n"+text+"\n", want)
		}
	}
	for text, want := range map[string]string{
		"minSyncPeriod: 0s":  `minSyncPeriod: Invalid value: "0s": must be greater than 0`,
		"minSyncPeriod: 31s": `minSyncPeriod: Invalid value: "31s": must not be greater than nftables.syncPeriod (30s)`,
		"minSyncPeriod: 6s\n---\n" + kubeProxyDoc + "mode: iptables\niptables: {syncPeriod: 5s}": `minSyncPeriod: Invalid value: "6s": must not be greater than iptables.syncPeriod (5s)`,
		"checkPeriod: -1s":              `checkPeriod: Invalid value: "-1s": must be greater than 0`,
		"uiBindAddress: localhost:80":   `uiBindAddress: Invalid value: "localhost:80": "localhost" is not an IP address`,
		"statusSocket: run":             `statusSocket: Invalid value: "run": must be an absolute path`,
		"externalIPRanges: [192.0.2.1]": `externalIPRanges[0]: Invalid value: "192.0.2.1": not a range of IP addresses: netip.ParsePrefix("192.0.2.1"): no '/'`,
		"verifyPeriod: -1s":             `verifyPeriod: Invalid value: "-1s": must not be negative`,
		"socketLoadBalancing: udp":      `socketLoadBalancing: Unsupported value: "udp": supported values: "off", "tcp"`,
		"socketLoadBalancing: tcp\n---\n" + kubeProxyDoc + "mode: ipvs":                      `socketLoadBalancing: Invalid value: "tcp": cannot be combined with mode ipvs`,
		"socketLoadBalancing: tcp\n---\n" + kubeProxyDoc + "nftables: {masqueradeAll: true}": `socketLoadBalancing: Invalid value: "tcp": cannot be combined with masqueradeAll`,
		"manifests: /m\n---\n" + kubeProxyDoc + "clientConnection: {kubeconfig: /k}":         `manifests: Invalid value: "/m": cannot be combined with the Kubernetes API`,
	} {
		wantError(t, slipstreamDoc+text+"\n", want)
	}
}

// wantError checks that a file has exactly one error.
func wantError(t *testing.T, text, want string) {
	t.Helper()
	c, _, err := Decode([]byte(text))
	if err != nil {
		t.Errorf("%s: %v", text, err)
		return
	}
	errs := c.Validate()
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("%s: %v; want %s", text, errs, want)
	}
}

// TestValid checks that values which kube-proxy accepts are accepted.
func TestValid(t *testing.T) {
	for _, text := range []string{
		"clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR",
		"clusterCIDR: 010.0.0.0/8,fd00::/8",
		"iptables: {syncPeriod: -1s}",
		"ipvs: {tcpTimeout: -1s, excludeCIDRs: [010.0.0.0/8, fd00::/8]}",
		"nodePortAddresses: [primary]",
		"nodePortAddresses: [primary, 192.0.2.0/24, localhost, 192.0.2.0/24, all]",
		"featureGates: {KubeProxyIPVS: false, NFTablesNetlink: false, KubeProxyNFTablesLocalhostNodePorts: true}",
		"nodePortAddresses: [0.0.0.0/0, '::/0', 192.0.2.77/24]",
		"healthzBindAddress: 1.2.3.4\nmetricsBindAddress: '::1'",
		"showHiddenMetricsForVersion: '1.36'",
		"featureGates: {AllAlpha: true, AllBeta: false, MinimizeIPTablesRestore: false, MultiCIDRServiceAllocator: true, ContextualLogging: false}",
		"logging: {format: text, verbosity: 4, vmodule: [{filePattern: run, verbosity: 9}]}",
		"logging: {options: {text: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}",
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
		"nftables: {minSyncPeriod: 30s, syncPeriod: 30s, masqueradeBit: 0}",
		"oomScoreAdj: -1000",
		"bindAddress: 010.0.0.1",
		"nftables: {syncPeriod: 1m}\n---\n" + slipstreamDoc + "minSyncPeriod: 1m\nverifyPeriod: 0s",
	} {
		c, _, err := Decode([]byte(kubeProxyDoc + "mode: nftables\n" + text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if errs := c.Validate(); len(errs) > 0 {
			t.Errorf("%s: %v", text, errs)
		}
	}
}

// TestAllAtOnce checks that all mistakes in a file are reported together.
func TestAllAtOnce(t *testing.T) {
	c, _, err := Decode([]byte(kubeProxyDoc + "mode: kernelspace\noomScoreAdj: 2000\nbindAddress: x\n---\n" + slipstreamDoc + "checkPeriod: 0s\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range c.Validate() {
		got = append(got, e.Field)
	}
	if want := []string{"mode", "bindAddress", "oomScoreAdj", "checkPeriod"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}
