// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

// system is a cluster of nodes named n1, n2, ... with Kubernetes' own endpointslice controller,
// which makes EndpointSlices of Services with a selector and of Pods.
type system struct {
	*site.Site
	Nodes   []*site.Node
	Outside *lab.Host // a machine outside the cluster
	audit   string    // path; requests of proxies, a line of JSON each

	stop context.CancelFunc // ends what runs in the background
	done sync.WaitGroup
}

// newSystem starts a cluster. It sets ServiceCIDRs in the options. See [site.Start].
func newSystem(ctx context.Context, nodes int, o upstream.ControlPlaneOptions) (_ *system, err error) {
	o.ServiceCIDRs = site.ServiceCIDRs
	policy, audit := filepath.Join(o.Dir, "audit-policy.yaml"), filepath.Join(o.Dir, "audit.log")
	err = os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "Metadata", "users": ["system:serviceaccount:kube-system:kube-proxy"]}]}`), 0o600)
	if err != nil {
		return nil, err
	}
	o.APIFlags = append(o.APIFlags, "--audit-policy-file="+policy, "--audit-log-path="+audit)
	started, err := site.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	s := &system{Site: started, audit: audit, stop: stop}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.done.Go(func() { s.runEndpointSlices(background) })
	for i := range nodes {
		n, err := s.Machine(i + 1)
		if err != nil {
			return nil, err
		}
		if err := n.Register(ctx); err != nil {
			return nil, err
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.Outside, err = s.Lab.Host("outside", site.OnFabric(200)...)
	return s, err
}

func (s *system) runEndpointSlices(ctx context.Context) {
	all := informers.NewSharedInformerFactory(s.Plane.Client, 0)
	controller := endpointslice.NewController(ctx,
		all.Core().V1().Pods(), all.Core().V1().Services(), all.Core().V1().Nodes(), all.Discovery().V1().EndpointSlices(),
		100, s.Plane.Client, 0) // endpoints in a slice: kube-controller-manager's default
	all.Start(ctx.Done())
	controller.Run(ctx, 2)
	all.Shutdown()
}

// Close ends everything.
func (s *system) Close() error {
	s.stop()
	err := s.Site.Close()
	s.done.Wait()
	return err
}

// taint gives the Node object these taints, and no others.
func (s *system) taint(ctx context.Context, n *site.Node, taints ...corev1.Taint) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		return err
	}
	_, err = s.Plane.Client.CoreV1().Nodes().Patch(ctx, n.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// The nftables table by which a node is cut off. It is the node's own rather than the
// link's state, so that routes and addresses are still there afterwards.
const cutTable = "cluster-test-cut"

// disconnect drops all packets between the node and the others, as a pulled cable does; given
// addresses, only those to and from these. Packets between the node and its own pods
// pass.
func disconnect(ctx context.Context, n *site.Node, only ...netip.Addr) error {
	var in, out strings.Builder
	for _, a := range only {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		fmt.Fprintf(&in, "iifname eth0 %s saddr %v drop; ", family, a)
		fmt.Fprintf(&out, "oifname eth0 %s daddr %v drop; ", family, a)
	}
	if len(only) == 0 {
		in.WriteString("iifname eth0 drop; ")
		out.WriteString("oifname eth0 drop; ")
	}
	rules := fmt.Sprintf(`table inet %s {
		chain in { type filter hook prerouting priority -400; %s }
		chain out { type filter hook postrouting priority 400; %s }
	}`, cutTable, in.String(), out.String())
	_, err := n.Run(ctx, "nft", rules)
	return err
}

// reconnect undoes disconnect.
func reconnect(ctx context.Context, n *site.Node) error {
	_, err := n.Run(ctx, "nft", "delete", "table", "inet", cutTable)
	return err
}

// request is a request of a proxy that was answered.
type request struct {
	Verb     string // as RBAC has it
	Resource string
	Query    url.Values
	Code     int // of the answer
}

// requests returns the requests of proxies so far.
func (s *system) requests() (all []request, err error) {
	text, err := os.ReadFile(s.audit)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}                       // a watch has an event at its start and one at its end
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
	for line := range bytes.Lines(text) {
		var event struct {
			AuditID, Verb, RequestURI string
			ObjectRef                 struct{ Resource string }
			ResponseStatus            struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%s: %w", s.audit, err)
		}
		if seen[event.AuditID] {
			continue
		}
		seen[event.AuditID] = true
		uri, err := url.Parse(event.RequestURI)
		if err != nil {
			return nil, err
		}
		all = append(all, request{event.Verb, event.ObjectRef.Resource, uri.Query(), event.ResponseStatus.Code})
	}
	return all, nil
}
