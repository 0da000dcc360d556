// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
)

// objects is a source of the objects of a manifest, and a dataplane that programs nothing.
type objects string

func (o objects) Run(ctx context.Context, deliver func([]source.Event)) error {
	var all []source.Event
	for _, one := range manifest.Decode("test.yaml", []byte(o)).Objects {
		all = append(all, source.Event{Type: source.Set, Object: one.Object})
	}
	deliver(append(all, source.Event{Type: source.Synced}))
	<-ctx.Done()
	return nil
}

func (objects) Reconcile(context.Context, *desired.Change) (s dataplane.Stats, _ error) {
	return s, nil
}
func (objects) Apply(context.Context, *desired.Change) (s dataplane.Stats, _ error) { return s, nil }
func (objects) Check(context.Context) error                                         { return nil }
func (objects) Cleanup(context.Context) error                                       { return nil }
func (objects) Close() error                                                        { return nil }

// view is that of a proxy of node n1, at 192.168.100.11, without a kernel.
func view(t *testing.T, manifest string) *View {
	return viewOf(t, manifest, desired.New(desired.Config{NodeName: "n1"}))
}

func viewOf(t *testing.T, manifest string, state *desired.State) *View {
	o := objects(manifest)
	p := proxy.New(o, state, o, metrics.New(), proxy.Options{
		CheckPeriod: time.Hour,
		NodeAddresses: func(ctx context.Context, deliver func([]netip.Addr)) error {
			deliver([]netip.Addr{netip.MustParseAddr("192.168.100.11")})
			<-ctx.Done()
			return nil
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	for synced := false; !synced; time.Sleep(time.Millisecond) {
		if err := p.Inspect(t.Context(), func(i *proxy.Inspection) { synced = i.Synced && !i.Updated.IsZero() }); err != nil {
			t.Fatal(err)
		}
	}
	return &View{
		Proxy: p, Node: "n1", Mode: "nftables", Missing: []string{"IPv6"}, Without: [2]bool{false, true},
		Describe:   func(*desired.Frontend, desired.PoolID) (d dataplane.Detail) { return d },
		OpenReader: func(context.Context) (proxy.Reader, error) { return nil, errors.New("no kernel") },
	}
}

const endpoint = "- {addresses: [10.244.1.10], nodeName: n1}\n"

// web is a Service with endpoints.
func web(endpoints string) string {
	return `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
` + endpoints
}

// webNodePort is the Service with a NodePort.
var webNodePort = strings.Replace(web(endpoint), "{clusterIP: 10.96.0.10, ports: [{", "{type: NodePort, clusterIP: 10.96.0.10, ports: [{nodePort: 30080, ", 1)

// TestNodePortNowhere asks for a NodePort on a node that has no address for NodePorts.
func TestNodePortNowhere(t *testing.T) {
	ranges := desired.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	v := viewOf(t, webNodePort, desired.New(desired.Config{NodeName: "n1", NodePorts: ranges}))
	for _, to := range []string{"127.0.0.1:30080", "192.168.100.11:30080"} {
		x, err := v.Explain(t.Context(), Question{To: to})
		if err != nil || !strings.HasPrefix(x.Verdict, "STOPS HERE (NoService): 30080/TCP is the NodePort of Service default/web, which this node serves at no IPv4 address: ") {
			t.Errorf("%s: %+v, %v", to, x, err)
		}
	}
}

// TestDecided explains connections that stop for what the proxy has decided: explain names the cause, and no other
// one. cmd/slipstream's TestExplain has what the kernel and other programs do.
func TestDecided(t *testing.T) {
	external := func(spec string) string {
		return strings.NewReplacer("n1", "n2", "spec: {", "spec: {"+spec+", ").Replace(web(endpoint))
	}
	balanced := strings.Replace(web(endpoint), "spec: {", "status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}\nspec: {type: LoadBalancer, loadBalancerSourceRanges: [203.0.113.0/24], ", 1)
	headless := strings.Replace(web(endpoint), "10.96.0.10", "None", 1)
	for _, c := range []struct {
		name, manifest string // of Service default/web, which works if it is empty
		from, to       string // a pod, and default/web, if empty
		want           Cause
		text           string // in the step of the cause
	}{
		{name: "no such Service", to: "default/none", want: NoService},
		{name: "no Service has the address", to: "10.9.9.9:80", want: NoService, text: "leaves these packets alone"},
		{name: "unallocated address", manifest: web(endpoint) + "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}\n",
			to: "10.96.7.7:80", want: NoService, text: "dropped"},
		{name: "no NodePort", to: "192.168.100.11:30999", want: NoService, text: "address of this node"},
		{name: "NodePort of another node", manifest: webNodePort, to: "203.0.113.7:30080", want: NoService, text: "30080/TCP is the NodePort of Service default/web, but 203.0.113.7 is no address of this node"},
		{name: "another port of the ClusterIP", to: "10.96.0.10:81", want: NoSuchPort, text: "refused"},
		{name: "another protocol", to: "10.96.0.10:80/UDP", want: NoSuchPort},
		{name: "headless, in a cluster", manifest: strings.Replace(headless, "labels: {", `labels: {service.kubernetes.io/headless: "", `, 1), want: NoService, text: "headless"},
		{name: "headless", manifest: headless, want: NoService, text: "headless"},
		{name: "no EndpointSlice", manifest: strings.SplitAfter(web(""), "---\n")[0], want: NoEndpointSlice},
		{name: "empty EndpointSlice", manifest: strings.TrimSuffix(web(""), "\n") + " []\n", want: EmptySlices},
		{name: "port of another name", manifest: strings.Replace(web(endpoint), "ports: [{port: 8080}]", "ports: [{name: web, port: 8080}]", 1), want: NoSuchPort, text: "targetPort"},
		{name: "not ready", manifest: web(strings.Replace(endpoint, "n1", "n1, conditions: {ready: false}", 1)), want: NoReadyEndpoint},
		{name: "terminating", manifest: web(strings.Replace(endpoint, "n1", "n1, conditions: {ready: false, serving: false, terminating: true}", 1)), want: NoReadyEndpoint},
		{name: "internal policy Local", manifest: external("internalTrafficPolicy: Local"), want: NoLocalEndpoint},
		{name: "external policy Local", manifest: external("externalTrafficPolicy: Local, externalIPs: [192.0.2.1]"),
			from: "outside", to: "192.0.2.1:80", want: NoLocalEndpoint, text: "dropped"},
		{name: "source range", manifest: balanced, to: "192.0.2.9:80", want: SourceRange},
		{name: "missing feature", to: "[fd00::1]:80", from: "node", want: FeatureMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := Question{From: c.from, To: c.to}
			if c.manifest == "" {
				c.manifest = web(endpoint)
			}
			if q.From == "" {
				q.From = "10.244.1.2"
			}
			if q.To == "" {
				q.To = "web"
			}
			x, err := view(t, c.manifest).Explain(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(x.Verdict, "STOPS HERE ("+string(c.want)+"): ") {
				t.Errorf("verdict %q", x.Verdict)
			}
			var text string
			for _, s := range x.Steps {
				if s.Cause == c.want {
					text += s.Text
				} else if s.Cause == Firewall || s.Cause == NoRoute || s.Cause == Forwarding {
					continue // of the test's machine
				} else if s.Cause != "" || s.Title == "Endpoint" && strings.Contains(s.Text, "probability") {
					t.Errorf("another cause, or an endpoint that is not reached: %+v", s)
				}
			}
			if !strings.Contains(text, c.text) {
				t.Errorf("no %q in %+v", c.text, x.Steps)
			}
		})
	}
}

// TestWarming: explain and services say that an endpoint became ready a short time ago. Endpoints are new to a state
// that has a time already.
func TestWarming(t *testing.T) {
	state := desired.New(desired.Config{NodeName: "n1"})
	state.Advance(time.Now())
	v := viewOf(t, strings.Replace(web(endpoint), "{name: web}", "{name: web, annotations: {slipstream.io/slow-start: 1h}}", 1), state)
	x, err := v.Explain(t.Context(), Question{From: "10.244.1.2", To: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(x.Steps, func(s Step) bool {
		return s.Title == "Endpoint" && strings.HasSuffix(s.Text, "warming: it became ready a short time ago and has 10 % of its weight.")
	}) {
		t.Errorf("explain: %+v", x.Steps)
	}
	state.ViewServices(nil, true, func(v *desired.ServiceView) {
		if uses := v.Ports[0].Endpoints[0].Uses(); uses != "used, warming: 10 %" {
			t.Errorf("services: %q", uses)
		}
	})
}
