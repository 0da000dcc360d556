// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/oracle/program"
)

// options are those of the proxy on a node.
func (w *world) options(node string) proxies.Options {
	w.Helper()
	if w.access[node] == nil {
		a, err := w.Plane.NewAccess(w.Context(), w.dir, w.name("proxy-"+node))
		w.check(err)
		w.access[node] = a
	}
	return proxies.Options{
		Dir: w.dir, Kubeconfig: w.access[node].Kubeconfig, ClusterCIDRs: site.ClusterCIDRs, Log: w.Logf,
	}
}

// start starts a proxy on a node. At the end of the test it is stopped, if it is not by
// then, and what it has programmed is removed.
func (w *world) start(kind proxies.Kind, n *site.Node, change ...func(*proxies.Options)) *proxies.Proxy {
	w.Helper()
	o := w.options(n.Name())
	if kind == proxies.Slipstream {
		o.Binary = slipstreamBinary(w.T)
		o.Configure = func(config map[string]any) {
			if *modeFlag != "" {
				config["mode"] = *modeFlag
			}
		}
	}
	for _, c := range change {
		c(&o)
	}
	p, err := proxies.Start(w.Context(), kind, n.Node, o)
	w.check(err)
	w.Cleanup(func() {
		ctx, cancel := ending()
		defer cancel()
		if w.Failed() && *keepLogs == "" {
			w.Logf("log of %s on %s:\n%s", kind, n.Name(), program.Tail([]byte(p.Log()), 15))
		}
		if err := p.Stop(); err != nil {
			w.Error(err)
		}
		if err := proxies.Cleanup(ctx, kind, n.Node, o); err != nil {
			w.Error(err)
		}
	})
	return p
}

// proxyKind is the proxy under test.
func proxyKind(t *testing.T) proxies.Kind {
	t.Helper()
	kind := proxies.Kind(*proxyFlag)
	if !slices.Contains(proxies.Kinds, kind) {
		t.Fatalf("-proxy: %q is not one of %v", kind, proxies.Kinds)
	}
	return kind
}

// startAll starts the proxy under test on all nodes.
func (w *world) startAll() []*proxies.Proxy {
	w.Helper()
	return w.startEverywhere(proxyKind(w.T))
}

// startEverywhere starts a proxy on all nodes.
func (w *world) startEverywhere(kind proxies.Kind, change ...func(*proxies.Options)) []*proxies.Proxy {
	w.Helper()
	var all []*proxies.Proxy
	for _, n := range w.Nodes {
		all = append(all, w.start(kind, n, change...))
	}
	return all
}

// stop asks a proxy to end.
func (w *world) stop(p *proxies.Proxy) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
	defer cancel()
	w.check(p.Terminate(ctx))
}

// nft lists a node's ruleset.
func (w *world) nft(n *site.Node) string {
	w.Helper()
	out, err := n.Run(w.Context(), "nft", "list", "ruleset")
	w.check(err)
	return string(out)
}

// noSlipstream fails the test if Slipstream has tables or chains on a node.
func (w *world) noSlipstream(n *site.Node) {
	w.Helper()
	for line := range strings.Lines(w.nft(n)) {
		if strings.HasPrefix(line, "table ") && strings.Contains(line, "slipstream") || strings.Contains(line, "SLIP-") {
			w.Errorf("%s still has %s", n.Name(), line)
		}
	}
}
