// SPDX-License-Identifier: Apache-2.0

// Package proxies runs Service proxies on nodes of a lab, each given the configuration
// file that kubeadm would: Slipstream as it is in this checkout, and upstream kube-proxy.
package proxies

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"sigs.k8s.io/yaml"
)

// Kind is a proxy, in one of its modes.
type Kind string

const (
	Slipstream         Kind = "slipstream" // in nftables mode
	SlipstreamIPTables Kind = "slipstream-iptables"
	SlipstreamIPVS     Kind = "slipstream-ipvs"
	KubeProxyNFTables  Kind = "kube-proxy-nftables"
	KubeProxyIPTables  Kind = "kube-proxy-iptables"
	KubeProxyIPVS      Kind = "kube-proxy-ipvs"
)

// Kinds are all of them but those of IPVS mode, which few kernels have. AllKinds has these too.
var (
	Kinds    = []Kind{Slipstream, SlipstreamIPTables, KubeProxyNFTables, KubeProxyIPTables}
	AllKinds = append(slices.Clone(Kinds), SlipstreamIPVS, KubeProxyIPVS)
)

// IsSlipstream says whether it is Slipstream, in any mode.
func (k Kind) IsSlipstream() bool { return strings.HasPrefix(string(k), string(Slipstream)) }

// Mode returns the mode by its name in configurations.
func (k Kind) Mode() string {
	for _, mode := range []string{"iptables", "ipvs"} {
		if strings.HasSuffix(string(k), "-"+mode) {
			return mode
		}
	}
	return "nftables"
}

// Options are the settings of a proxy.
type Options struct {
	Dir          string                      // an existing directory for its configuration and its log
	Binary       string                      // path; Slipstream named kube-proxy gets kube-proxy's flags; if empty, kube-proxy is built
	Kubeconfig   string                      // path
	ClusterCIDRs []netip.Prefix              // of all pods
	Configure    func(config map[string]any) // changes the configuration before it is written, if not nil
	Flags        []string                    // further ones
	Log          upstream.Log                // called about what takes long, if not nil
}

// Proxy is a proxy's process on a node. See [lab.Program] for how to end it; its rules then
// stay.
type Proxy struct {
	*lab.Program
	Kind Kind
	Node *lab.Node
}

// Start starts a proxy on a node and returns at once: use Await, or traffic, to find out when
// Services are programmed. Its log is written to KIND-NODE.log in the directory.
func Start(ctx context.Context, kind Kind, node *lab.Node, o Options) (*Proxy, error) {
	name := fmt.Sprintf("%s-%s", kind, node.Name())
	if o.Binary == "" && !kind.IsSlipstream() {
		binary, err := upstream.Current.Binary(ctx, "kube-proxy", o.Log)
		if err != nil {
			return nil, err
		}
		o.Binary = binary
	}
	config, err := o.writeConfig(kind, node.Name(), name)
	if err != nil {
		return nil, err
	}
	flags := append([]string{"--config=" + config, "--v=2"}, o.Flags...)
	if kind.IsSlipstream() && filepath.Base(o.Binary) != "kube-proxy" {
		flags = append([]string{"run"}, flags...)
	}
	p, err := node.StartProgram(o.Dir, name, o.Binary, flags...)
	if err != nil {
		return nil, err
	}
	return &Proxy{p, kind, node}, nil
}

// BuildSlipstream builds the command slipstream of this checkout into dir and returns its
// path.
func BuildSlipstream(ctx context.Context, dir string) (string, error) {
	root, err := upstream.Go(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "slipstream")
	_, err = upstream.Go(ctx, root, "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/slipstream")
	return path, err
}

func (o *Options) writeConfig(kind Kind, nodeName, name string) (string, error) {
	var config map[string]any
	if err := yaml.Unmarshal(kubeadmConfig, &config); err != nil {
		return "", err
	}
	config["mode"] = kind.Mode()
	config["hostnameOverride"] = nodeName
	config["clusterCIDR"] = plain.List(o.ClusterCIDRs, ",")
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

// kubeadmConfig is the configuration that "kubeadm init phase addon kube-proxy" puts into
// its ConfigMap: every field, most of them empty, which stands for the default.
//
//go:embed kubeadm.yaml
var kubeadmConfig []byte
