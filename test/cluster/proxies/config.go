// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// writeConfig writes the configuration file of a proxy and returns its path.
func (o *Options) writeConfig(kind Kind, nodeName, name string) (string, error) {
	config := kubeadmConfig()
	config["mode"] = kind.mode()
	config["hostnameOverride"] = nodeName
	config["clusterCIDR"] = joined(o.ClusterCIDRs)
	config["clientConnection"].(map[string]any)["kubeconfig"] = o.Kubeconfig
	// A node of the lab is only a network namespace: these settings would affect the whole
	// machine.
	config["conntrack"].(map[string]any)["maxPerCore"] = 0
	config["conntrack"].(map[string]any)["min"] = 0
	config["oomScoreAdj"] = 0
	if o.Configure != nil {
		o.Configure(config)
	}
	b, err := yaml.Marshal(config)
	if err != nil {
		return "", err
	}
	path := filepath.Join(o.Dir, name+"-config.yaml")
	return path, os.WriteFile(path, b, 0o600)
}

func joined(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}

// kubeadmConfig is what "kubeadm init phase addon kube-proxy" of v1.36 puts into its
// ConfigMap: every field, most of them empty, which stands for the default.
func kubeadmConfig() map[string]any {
	type object = map[string]any
	return object{
		"apiVersion":          "kubeproxy.config.k8s.io/v1alpha1",
		"kind":                "KubeProxyConfiguration",
		"bindAddress":         "0.0.0.0",
		"bindAddressHardFail": false,
		"clientConnection": object{
			"acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0,
		},
		"clusterCIDR":      "",
		"configSyncPeriod": "0s",
		"conntrack": object{
			"maxPerCore": nil, "min": nil, "tcpBeLiberal": false,
			"tcpCloseWaitTimeout": nil, "tcpEstablishedTimeout": nil,
			"udpStreamTimeout": "0s", "udpTimeout": "0s",
		},
		"detectLocal":        object{"bridgeInterface": "", "interfaceNamePrefix": ""},
		"detectLocalMode":    "",
		"enableProfiling":    false,
		"healthzBindAddress": "",
		"hostnameOverride":   "",
		"iptables": object{
			"localhostNodePorts": nil, "masqueradeAll": false, "masqueradeBit": nil,
			"minSyncPeriod": "0s", "syncPeriod": "0s",
		},
		"ipvs": object{
			"excludeCIDRs": nil, "minSyncPeriod": "0s", "scheduler": "", "strictARP": false,
			"syncPeriod": "0s", "tcpFinTimeout": "0s", "tcpTimeout": "0s", "udpTimeout": "0s",
		},
		"logging": object{
			"flushFrequency": 0, "verbosity": 0,
			"options": object{
				"json": object{"infoBufferSize": "0"},
				"text": object{"infoBufferSize": "0"},
			},
		},
		"metricsBindAddress": "",
		"mode":               "",
		"nftables": object{
			"masqueradeAll": false, "masqueradeBit": nil, "minSyncPeriod": "0s", "syncPeriod": "0s",
		},
		"nodePortAddresses":           nil,
		"oomScoreAdj":                 nil,
		"portRange":                   "",
		"showHiddenMetricsForVersion": "",
		"winkernel": object{
			"enableDSR": false, "forwardHealthCheckVip": false, "networkName": "",
			"rootHnsEndpointName": "", "sourceVip": "",
		},
	}
}
