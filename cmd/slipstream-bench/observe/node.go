// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// patience bounds each step.
const patience = 2 * time.Minute

const (
	metricsAt = "127.0.0.1:10249"
	pageAt    = "127.0.0.1:10280"
)

var (
	clusterIPs = netip.MustParsePrefix("10.96.0.0/16")
	pods       = netip.MustParsePrefix("10.128.0.0/10") // of all Services
	serverPod  = netip.MustParseAddr("10.244.1.3")
)

// node has a client, and a server that has the addresses of all endpoints.
type node struct {
	*Options
	lab    *lab.Lab
	dir    string
	node   *lab.Node
	client *lab.Pod
	loads  []*lab.Load
}

// build makes the node. Connections to its Services begin with the first proxy.
func (o *Options) build(ctx context.Context) (n *node, err error) {
	n = &node{Options: o}
	if n.dir, err = os.MkdirTemp("", "slipstream-bench-"); err != nil {
		return nil, err
	}
	if n.lab, err = lab.New(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(n.dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	n.node, err = n.lab.Node("node-1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	if err != nil {
		return nil, err
	}
	if n.client, err = n.node.Pod("client", netip.MustParseAddr("10.244.1.2")); err != nil {
		return nil, err
	}
	server, err := n.node.Pod("server", serverPod)
	if err != nil {
		return nil, err
	}
	if err := server.AddLocalRange(pods); err != nil {
		return nil, err
	}
	if out, err := n.node.Run(ctx, "ip", "route", "add", pods.String(), "via", serverPod.String(), "dev", server.NodeLink(), "onlink"); err != nil {
		return nil, fmt.Errorf("route to %s: %w: %s", pods, err, out)
	}
	if _, err := server.Serve(lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080")); err != nil {
		return nil, err
	}
	manifests := filepath.Join(n.dir, "manifests")
	return n, errors.Join(os.Mkdir(manifests, 0o755), os.WriteFile(filepath.Join(manifests, "services.yaml"), n.manifests(), 0o644))
}

func (n *node) close() error {
	for _, l := range n.loads {
		_ = l.Close()
	}
	return errors.Join(n.lab.Close(), os.RemoveAll(n.dir))
}

func clusterIP(i int) netip.AddrPort { return netip.AddrPortFrom(lab.Nth(clusterIPs, i+10), 80) }

func (n *node) manifests() []byte {
	var b strings.Builder
	for i := range n.Services {
		ip := clusterIP(i).Addr()
		fmt.Fprintf(&b, `---
{apiVersion: v1, kind: Service, metadata: {namespace: bench, name: web-%[1]d},
 spec: {clusterIP: %[2]s, clusterIPs: [%[2]s], ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {namespace: bench, name: web-%[1]d, labels: {kubernetes.io/service-name: web-%[1]d}},
 ports: [{name: "", port: 8080, protocol: TCP}], endpoints: [`, i, ip)
		for e := range n.Endpoints {
			fmt.Fprintf(&b, "{addresses: [%s]},", lab.Nth(pods, i*n.Endpoints+e))
		}
		b.WriteString("]}\n")
	}
	return []byte(b.String())
}

// connect begins the connections, and waits until conntrack has its usual number of them.
func (n *node) connect(ctx context.Context) error {
	for i := range n.Busy {
		l, err := n.client.StartLoad(ctx, lab.TCP, clusterIP(i), lab.LoadOptions{Pace: time.Second * time.Duration(n.Busy) / time.Duration(n.Rate)})
		if err != nil {
			return err
		}
		n.loads = append(n.loads, l)
	}
	return bench.Sleep(ctx, time.Duration(n.Before)*time.Second)
}

func (n *node) connections() (ok int64, err error) {
	for _, l := range n.loads {
		s := l.Stats()
		ok += s.OK
		if s.Failed > 0 {
			err = fmt.Errorf("connections: %s", s)
		}
	}
	return ok, err
}

// get asks the proxy, and discards the answer.
func (n *node) get(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := n.node.HTTPClient().Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// look asks again and again, with pauses, until ctx ends. It returns the first error before that.
func (n *node) look(ctx context.Context, pause time.Duration, urls ...string) error {
	for {
		for _, url := range urls {
			if err := n.get(ctx, url); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if bench.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}
