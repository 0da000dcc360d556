// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// options are those of the proxy on a node.
func (e *env) options(node string) proxies.Options {
	e.Helper()
	if e.access[node] == nil {
		a, err := e.Plane.NewAccess(e.Context(), e.dir, e.name("proxy-"+node))
		e.check(err)
		e.access[node] = a
	}
	return proxies.Options{
		Dir: e.dir, Kubeconfig: e.access[node].Kubeconfig, ClusterCIDRs: site.ClusterCIDRs, Log: e.Logf,
	}
}

// start starts a proxy on a node. At the end of the test it is stopped, if it still runs, and
// its rules are removed.
func (e *env) start(kind proxies.Kind, n *site.Node, change ...func(*proxies.Options)) *proxies.Proxy {
	e.Helper()
	o := e.options(n.Name())
	if kind.IsSlipstream() {
		o.Binary = slipstreamBinary(e.T)
		o.Configure = func(config map[string]any) {
			if *modeFlag != "" {
				config["mode"] = *modeFlag
			}
		}
	}
	for _, c := range change {
		c(&o)
	}
	p, err := proxies.Start(e.Context(), kind, n.Node, o)
	e.check(err)
	e.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if e.Failed() && *keepLogs == "" {
			e.Logf("log of %s on %s:\n%s", kind, n.Name(), lab.Tail(p.Log(), 15))
		}
		if err := p.Close(); err != nil {
			e.Error(err)
		}
		e.cleanup(ctx, kind, n)
	})
	return p
}

// cleanup removes everything that a proxy has programmed on a node, by the proxy's own command. That proxy must not be
// running there; if it is Slipstream, another one may be.
func (e *env) cleanup(ctx context.Context, kind proxies.Kind, n *site.Node) {
	e.Helper()
	binary, args := slipstreamBinary(e.T), []string{"cleanup", "--force"}
	switch {
	case kind == proxies.KubeProxyIPVS:
		// "kube-proxy --cleanup" fails: with iptables-nft it does not delete chains in the
		// order in which they refer to each other.
		binary, args = asKubeProxy(e.T, e.dir), []string{"--cleanup"}
	case !kind.IsSlipstream():
		var err error
		binary, err = upstream.Current.Binary(ctx, "kube-proxy", e.Logf)
		e.check(err)
		args = []string{"--cleanup"}
	}
	if _, err := n.Run(ctx, binary, args...); err != nil {
		e.Error(err)
	}
}

// asKubeProxy returns Slipstream's path under kube-proxy's name, where it has kube-proxy's flags and removes its rules.
func asKubeProxy(t *testing.T, dir string) string {
	t.Helper()
	link := filepath.Join(dir, "kube-proxy")
	if err := os.Symlink(slipstreamBinary(t), link); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return link
}

// proxyKind is the proxy under test.
func proxyKind(t *testing.T) proxies.Kind {
	t.Helper()
	kind := proxies.Kind(*proxyFlag)
	if !slices.Contains(proxies.AllKinds, kind) {
		t.Fatalf("-proxy: %q is not one of %v", kind, proxies.AllKinds)
	}
	return kind
}

// startAll starts the proxy under test on all nodes.
func (e *env) startAll() []*proxies.Proxy {
	e.Helper()
	return e.startEverywhere(proxyKind(e.T))
}

// startEverywhere starts a proxy on all nodes.
func (e *env) startEverywhere(kind proxies.Kind, change ...func(*proxies.Options)) []*proxies.Proxy {
	e.Helper()
	var all []*proxies.Proxy
	for _, n := range e.Nodes {
		all = append(all, e.start(kind, n, change...))
	}
	return all
}

// stop asks a proxy to end.
func (e *env) stop(p *proxies.Proxy) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	e.check(p.Terminate(ctx))
}

// nft lists a node's ruleset.
func (e *env) nft(n *site.Node) string {
	e.Helper()
	out, err := n.Run(e.Context(), "nft", "list", "ruleset")
	e.check(err)
	return string(out)
}

// noSlipstream fails the test if Slipstream has tables or chains on a node, except
// SLIP-LOCALNET, which stays while route_localnet is set.
func (e *env) noSlipstream(n *site.Node) {
	e.Helper()
	ruleset := e.nft(n)
	set, err := n.Run(e.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	e.check(err)
	if strings.TrimSpace(string(set)) == "1" {
		ruleset = strings.ReplaceAll(ruleset, "SLIP-LOCALNET", "")
	}
	for line := range strings.Lines(ruleset) {
		if strings.HasPrefix(line, "table ") && strings.Contains(line, "slipstream") || strings.Contains(line, "SLIP-") {
			e.Errorf("%s still has %s", n.Name(), line)
		}
	}
}
