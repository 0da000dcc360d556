// SPDX-License-Identifier: Apache-2.0

package main

// fieldOf says which field of kube-proxy's configuration a flag sets. These flags
// are ignored beside --config, as kube-proxy ignores them.
var fieldOf = map[string]string{
	"bind-address":                      "bindAddress",
	"bind-address-hard-fail":            "bindAddressHardFail",
	"cluster-cidr":                      "clusterCIDR",
	"config-sync-period":                "configSyncPeriod",
	"conntrack-max-per-core":            "conntrack.maxPerCore",
	"conntrack-min":                     "conntrack.min",
	"conntrack-tcp-be-liberal":          "conntrack.tcpBeLiberal",
	"conntrack-tcp-timeout-close-wait":  "conntrack.tcpCloseWaitTimeout",
	"conntrack-tcp-timeout-established": "conntrack.tcpEstablishedTimeout",
	"conntrack-udp-timeout":             "conntrack.udpTimeout",
	"conntrack-udp-timeout-stream":      "conntrack.udpStreamTimeout",
	"detect-local-mode":                 "detectLocalMode",
	"feature-gates":                     "featureGates",
	"healthz-bind-address":              "healthzBindAddress",
	"healthz-port":                      "",
	"iptables-localhost-nodeports":      "iptables.localhostNodePorts",
	"iptables-masquerade-bit":           "iptables.masqueradeBit",
	"iptables-min-sync-period":          "iptables.minSyncPeriod",
	"iptables-sync-period":              "iptables.syncPeriod",
	"ipvs-exclude-cidrs":                "ipvs.excludeCIDRs",
	"ipvs-min-sync-period":              "ipvs.minSyncPeriod",
	"ipvs-scheduler":                    "ipvs.scheduler",
	"ipvs-strict-arp":                   "ipvs.strictARP",
	"ipvs-sync-period":                  "ipvs.syncPeriod",
	"ipvs-tcp-timeout":                  "ipvs.tcpTimeout",
	"ipvs-tcpfin-timeout":               "ipvs.tcpFinTimeout",
	"ipvs-udp-timeout":                  "ipvs.udpTimeout",
	"kube-api-burst":                    "clientConnection.burst",
	"kube-api-content-type":             "clientConnection.contentType",
	"kube-api-qps":                      "clientConnection.qps",
	"kubeconfig":                        "clientConnection.kubeconfig",
	"masquerade-all":                    "iptables.masqueradeAll",
	"metrics-bind-address":              "metricsBindAddress",
	"metrics-port":                      "",
	"nftables-masquerade-bit":           "nftables.masqueradeBit",
	"nodeport-addresses":                "nodePortAddresses",
	"oom-score-adj":                     "oomScoreAdj",
	"pod-bridge-interface":              "detectLocal.bridgeInterface",
	"pod-interface-name-prefix":         "detectLocal.interfaceNamePrefix",
	"profiling":                         "enableProfiling",
	"proxy-mode":                        "mode",
	"show-hidden-metrics-for-version":   "showHiddenMetricsForVersion",
}

// beforeFile says the same of flags that go before the file: those about logs, as
// with kube-proxy, and those for Slipstream's own configuration.
var beforeFile = map[string]string{
	"hostname-override": "hostnameOverride",

	"log-flush-frequency":       "logging.flushFrequency",
	"log-json-info-buffer-size": "logging.options.json.infoBufferSize",
	"log-json-split-stream":     "logging.options.json.splitStream",
	"log-text-info-buffer-size": "logging.options.text.infoBufferSize",
	"log-text-split-stream":     "logging.options.text.splitStream",
	"logging-format":            "logging.format",
	"v":                         "logging.verbosity",
	"vmodule":                   "logging.vmodule",

	"manifests":        "manifests",
	"min-sync-period":  "minSyncPeriod",
	"check-period":     "checkPeriod",
	"verify-period":    "verifyPeriod",
	offloadThreshold:   "fastPath.offloadPacketThreshold",
	"scope":            "fastPath.scope",
	"interfaces":       "fastPath.interfaces",
	"hardware-offload": "fastPath.hardwareOffload",
}
