// SPDX-License-Identifier: Apache-2.0

// Package proxies runs Service proxies on nodes of a lab, each given the configuration
// file that kubeadm would: Slipstream as it is in this checkout, and upstream kube-proxy.
package proxies

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/slipstream-proxy/slipstream/test/oracle/program"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// Kind is a proxy, in one of its modes.
type Kind string

// The proxies.
const (
	Slipstream        Kind = "slipstream"
	KubeProxyNFTables Kind = "kube-proxy-nftables"
	KubeProxyIPTables Kind = "kube-proxy-iptables"
)

// Kinds are all of them.
var Kinds = []Kind{Slipstream, KubeProxyNFTables, KubeProxyIPTables}

// mode is what the configuration calls it.
func (k Kind) mode() string {
	if k == KubeProxyIPTables {
		return "iptables"
	}
	return "nftables"
}

// Options are what a proxy is started with.
type Options struct {
	// Dir is an existing directory for its configuration and its log.
	Dir string
	// Binary is the path of the program: what [BuildSlipstream] returned for
	// Slipstream; for kube-proxy it may be empty, then it is built when first needed.
	Binary string
	// Kubeconfig is the path of the file that says where the API server is.
	Kubeconfig string
	// ClusterCIDRs are where all pods are.
	ClusterCIDRs []netip.Prefix
	// AsKubeProxy starts Slipstream under kube-proxy's name and with its flags.
	AsKubeProxy bool
	// Configure, if not nil, may change the configuration before it is written.
	Configure func(config map[string]any)
	// Flags are further ones.
	Flags []string
	// Log is called about what takes long. It may be nil.
	Log upstream.Log
}

// Proxy is a proxy's process on a node. See [program.Program] for how to end it; what it
// has programmed then stays.
type Proxy struct {
	*program.Program
	Kind Kind
	Node *lab.Node
}

// Start starts a proxy on a node and returns at once: use Await, or traffic, to learn
// when it has programmed something. Its log goes to KIND-NODE.log in the directory.
func Start(ctx context.Context, kind Kind, node *lab.Node, o Options) (*Proxy, error) {
	name := fmt.Sprintf("%s-%s", kind, node.Name())
	binary, err := o.binary(ctx, kind)
	if err != nil {
		return nil, err
	}
	config, err := o.writeConfig(kind, node.Name(), name)
	if err != nil {
		return nil, err
	}
	flags := append([]string{"--config=" + config, "--v=2"}, o.Flags...)
	if kind == Slipstream && !o.AsKubeProxy {
		flags = append([]string{"run"}, flags...)
	}
	p, err := program.Start(node.Namespace, o.Dir, name, binary, flags...)
	if err != nil {
		return nil, err
	}
	return &Proxy{p, kind, node}, nil
}

// binary is the path of the program to start.
func (o *Options) binary(ctx context.Context, kind Kind) (string, error) {
	switch {
	case kind != Slipstream && o.Binary == "":
		return upstream.Binary(ctx, "kube-proxy", o.Log)
	case kind == Slipstream && o.AsKubeProxy:
		link := filepath.Join(o.Dir, "kube-proxy")
		if err := os.Symlink(o.Binary, link); err != nil && !os.IsExist(err) {
			return "", err
		}
		return link, nil
	}
	return o.Binary, nil
}
