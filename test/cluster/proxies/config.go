// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	_ "embed"
	"os"
	"path/filepath"

	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
	"sigs.k8s.io/yaml"
)

// writeConfig writes the configuration file of a proxy and returns its path.
func (o *Options) writeConfig(kind Kind, nodeName, name string) (string, error) {
	var config map[string]any
	if err := yaml.Unmarshal(kubeadmConfig, &config); err != nil {
		return "", err
	}
	config["mode"] = kind.mode()
	config["hostnameOverride"] = nodeName
	config["clusterCIDR"] = upstream.JoinPrefixes(o.ClusterCIDRs)
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

// kubeadmConfig is the configuration that "kubeadm init phase addon kube-proxy" of v1.37 puts
// into its ConfigMap: every field, most of them empty, which stands for the default.
//
//go:embed kubeadm.yaml
var kubeadmConfig []byte
