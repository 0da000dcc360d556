// SPDX-License-Identifier: Apache-2.0

package see

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"k8s.io/apimachinery/pkg/types"
)

// Service is a Service as it is programmed.
type Service struct {
	desired.ServiceView
	Traffic []Traffic `json:"traffic,omitempty"` // by port, in the order of Ports, if it was asked for
}

// Traffic is the connections that conntrack has now.
type Traffic struct {
	Count
	Endpoints map[string]Count `json:"endpoints,omitempty"` // by address
}

// Count counts connections and their bytes, of both directions. Bytes are known if
// net.netfilter.nf_conntrack_acct is set, and nil otherwise.
type Count struct {
	Connections int     `json:"connections"`
	Offloaded   int     `json:"offloaded"`  // on the fast path
	Unanswered  int     `json:"unanswered"` // no packet of a reply was seen
	Bytes       *uint64 `json:"bytes,omitempty"`
}

func (c *Count) add(f *flows.Flow, accounting bool) {
	c.Connections++
	if f.Offloaded {
		c.Offloaded++
	}
	if !f.Answered {
		c.Unanswered++
	}
	if accounting {
		if c.Bytes == nil {
			c.Bytes = new(uint64)
		}
		*c.Bytes += f.Bytes()
	}
}

// Query selects Services.
type Query struct {
	Namespace, Name string // all if empty
	Endpoints       bool   // list them
	Traffic         bool   // count connections: the kernel walks its table of connections
}

// Services returns the selected Services, by namespace and name.
func (v *View) Services(ctx context.Context, q Query) ([]Service, error) {
	all := []Service{}
	ports := map[desired.FrontendKey]place{}
	selected := func(n types.NamespacedName) bool {
		return (q.Namespace == "" || n.Namespace == q.Namespace) && (q.Name == "" || n.Name == q.Name)
	}
	err := v.Proxy.Inspect(ctx, func(i *proxy.Inspection) {
		i.State.ViewServices(selected, q.Endpoints, func(s *desired.ServiceView) { all = append(all, Service{ServiceView: *s}) })
	})
	if err != nil {
		return nil, errors.Join(errors.New("the proxy's loop does not answer"), err)
	}
	slices.SortFunc(all, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if !q.Traffic {
		return all, nil
	}
	for s := range all {
		all[s].Traffic = make([]Traffic, len(all[s].Ports))
		for p := range all[s].Ports {
			all[s].Traffic[p].Endpoints = map[string]Count{}
			for _, f := range all[s].Ports[p].Frontends {
				if f.Owner == "" {
					ports[f.Key] = place{s, p}
				}
			}
		}
	}
	accounting := accounts()
	err = translated(ctx, func(f *flows.Flow) {
		at, ok := ports[f.Frontend()]
		if !ok {
			at, ok = ports[f.Frontend().NodePort()]
		}
		if !ok {
			return
		}
		t := &all[at.service].Traffic[at.port]
		t.add(f, accounting)
		e := t.Endpoints[f.Backend.String()]
		e.add(f, accounting)
		t.Endpoints[f.Backend.String()] = e
	})
	return all, err
}

type place struct{ service, port int }

// accounts reports whether conntrack counts bytes.
func accounts() bool {
	on, err := number("net/netfilter/nf_conntrack_acct")
	return err == nil && on != 0
}

// translated visits the connections that have been translated.
func translated(ctx context.Context, visit func(*flows.Flow)) (err error) {
	conn, err := flows.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.Translated(ctx, visit)
}
