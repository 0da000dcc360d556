// SPDX-License-Identifier: Apache-2.0

package see

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Service is a Service as it is programmed.
type Service struct {
	desired.ServiceView
	Traffic []Traffic `json:"traffic,omitempty"` // by port, in the order of Ports, if it was asked for
}

// Traffic is the connections that conntrack has now, and the totals since the counting began.
type Traffic struct {
	Count
	Total     *Counted         `json:"total,omitempty"`
	Endpoints map[string]Count `json:"endpoints,omitempty"` // by address
	// EndpointRates are by address. They are known from the second question on that names the Service.
	EndpointRates map[string]Rate `json:"endpointRates,omitempty"`
	// Rejected is the number of packets that were refused or dropped since the Service or the proxy's
	// table was created, because there are no endpoints, or none that the traffic policy allows, or because of
	// the client's address. It is nil in iptables mode, which does not count them by frontend.
	Rejected *uint64 `json:"rejectedPackets,omitempty"`
	// RejectedRate is their number per second, measured as the rates of Total.
	RejectedRate *float64 `json:"rejectedPacketsPerSecond,omitempty"`
}

// Rate is what an endpoint gets from the Service port, measured as the rates of Total.
type Rate struct {
	Connections float64 `json:"connectionsPerSecond"`
	Bytes       float64 `json:"bytesPerSecond,omitempty"`
}

// Count counts connections and their bytes, of both directions. Bytes are known if
// net.netfilter.nf_conntrack_acct is set, and nil otherwise.
type Count struct {
	Connections int     `json:"connections"`
	Offloaded   int     `json:"offloaded"`  // on the fast path
	Unanswered  int     `json:"unanswered"` // no packet of a reply was seen
	Bytes       *uint64 `json:"bytes,omitempty"`
}

// count is what a walk counted.
func (e existing) count(accounting bool) Count {
	c := Count{Connections: int(e.connections), Offloaded: int(e.offloaded), Unanswered: int(e.unanswered)}
	if accounting {
		c.Bytes = &e.bytes
	}
	return c
}

func (c *Count) merge(o Count) {
	c.Connections += o.Connections
	c.Offloaded += o.Offloaded
	c.Unanswered += o.Unanswered
	c.Bytes = sum(c.Bytes, o.Bytes)
}

// sum adds numbers that are nil if they are unknown.
func sum[T uint64 | float64](a, b *T) *T {
	if b == nil {
		return a
	}
	return new(ptr.Deref(a, 0) + *b)
}

// Query selects Services.
type Query struct {
	Namespace, Name string // all if empty
	// Only, if not nil, selects these.
	Only      map[types.NamespacedName]bool
	Endpoints bool // list them
	Traffic   bool // count connections, see [traffic]; the kernel walks its table of them
	// Age is how long ago existing connections may have been counted, such as [Recent]. With 0, they are counted now.
	Age time.Duration
}

// Services returns the selected Services, by namespace and name.
func (v *View) Services(ctx context.Context, q Query) ([]Service, error) {
	all := []Service{}
	ports := map[desired.FrontendKey]place{}
	selected := func(n types.NamespacedName) bool {
		return (q.Namespace == "" || n.Namespace == q.Namespace) && (q.Name == "" || n.Name == q.Name) && (q.Only == nil || q.Only[n])
	}
	destinations := map[desired.FrontendKey][]desired.FrontendKey{}
	err := v.Proxy.Inspect(ctx, func(i *proxy.Inspection) {
		i.State.ViewServices(selected, q.Endpoints, func(s *desired.ServiceView) {
			for p := range s.Ports {
				v.chooses(i, &s.Ports[p])
				for _, f := range s.Ports[p].Frontends {
					if q.Traffic && f.Owner == "" {
						destinations[f.Key] = i.State.Destinations(f.Key)
					}
				}
			}
			all = append(all, Service{ServiceView: *s})
		})
	})
	if err != nil {
		return nil, errors.Join(errors.New("the proxy's loop does not answer"), err)
	}
	slices.SortFunc(all, func(a, b Service) int { return compareNames(a.name(), b.name()) })
	if !q.Traffic {
		return all, nil
	}
	for s := range all {
		all[s].Traffic = make([]Traffic, len(all[s].Ports))
		for p := range all[s].Ports {
			all[s].Traffic[p].Endpoints = map[string]Count{}
			for _, f := range all[s].Ports[p].Frontends {
				for _, to := range destinations[f.Key] {
					ports[to] = place{s, p}
				}
			}
		}
	}
	portOf := func(k desired.FrontendKey) *Traffic {
		at, ok := ports[k]
		if !ok {
			return nil
		}
		return &all[at.service].Traffic[at.port]
	}
	accounting := Accounts()
	rejected, err := v.rejected()
	if err != nil {
		return nil, err
	}
	enough := func() bool {
		if q.Name != "" { // the rates of its endpoints are measured from one walk to the next
			again := time.Since(v.traffic.sampled) >= rateAfter
			for k, n := range v.traffic.totals {
				if (n.backends == nil || !n.measured && again) && portOf(k) != nil {
					return false
				}
			}
		}
		return v.traffic.recent(q.Age)
	}
	err = v.traffic.read(ctx, v.IPVS, enough, rejected, func(zero func() *Counted) error {
		for to, n := range v.traffic.existing {
			t := portOf(to.key())
			if t == nil {
				continue
			}
			t.merge(n.count(accounting))
			address := to.backend.String()
			e := t.Endpoints[address]
			e.merge(n.count(accounting))
			t.Endpoints[address] = e
		}
		for s := range all {
			for p := range all[s].Traffic {
				t := &all[s].Traffic[p]
				t.Total = zero()
				if v.Rejected != nil {
					t.Rejected = new(uint64)
					if v.traffic.rated {
						t.RejectedRate = new(float64)
					}
				}
			}
		}
		for k, n := range rejected {
			if t := portOf(k); t != nil {
				*t.Rejected += n
				if t.RejectedRate != nil {
					*t.RejectedRate += v.traffic.refusal[k]
				}
			}
		}
		part := q.Namespace != "" || q.Name != ""
		for k, n := range v.traffic.totals {
			if t := portOf(k); t != nil {
				t.Total.add(n)
				if q.Name != "" {
					t.addRates(n)
				}
			} else if !part {
				delete(v.traffic.totals, k) // it is not a Service's any more
			}
		}
		return nil
	})
	return all, err
}

// chooses sets how the pools of a port choose in fact.
func (v *View) chooses(i *proxy.Inspection, p *desired.PortView) {
	for at := range p.Pools {
		pool := &p.Pools[at]
		if since, known := i.Shrunk[pool.ID]; known && pool.Empty != "" {
			pool.EmptySince = &since
		}
		for _, view := range p.Frontends {
			f := i.State.FrontendAt(view.Key)
			if view.Owner == "" && f != nil && slices.Contains(f.Pools(), pool.ID) {
				pool.Algorithm = cmp.Or(v.Describe(f, pool.ID).Scheduler, pool.Algorithm)
				break
			}
		}
	}
}

func (s *Service) name() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// Names appends the names of all Services, in order.
func (v *View) Names(ctx context.Context, to []types.NamespacedName) (all []types.NamespacedName, err error) {
	all = to
	err = v.Proxy.Inspect(ctx, func(i *proxy.Inspection) {
		each := func(visit func(types.NamespacedName)) {
			i.State.ViewServices(func(n types.NamespacedName) bool { visit(n); return false }, false, nil)
		}
		n := 0
		each(func(types.NamespacedName) { n++ })
		all = slices.Grow(all, n) // growing step by step would leave several times as much garbage
		each(func(name types.NamespacedName) { all = append(all, name) })
	})
	slices.SortFunc(all, compareNames)
	return all, err
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// rejected returns the numbers of rejected packets by destination, if the mode knows them.
func (v *View) rejected() (map[desired.FrontendKey]uint64, error) {
	if v.Rejected == nil {
		return nil, nil
	}
	return v.Rejected()
}

// ServiceTraffic is what a Service carries.
type ServiceTraffic struct {
	Open     uint64 // connections now
	Rejected uint64 // packets, see [Traffic]
	Total
	// The rates are per second, see [Counted]; 0 while they are unknown.
	ConnectionRate, ByteRate float64
}

// Traffic returns what the Services carry that have or had connections since the counting began. It
// costs less than Services. age is that of Query.
func (v *View) Traffic(ctx context.Context, age time.Duration) (map[types.NamespacedName]ServiceTraffic, error) {
	rejected, err := v.rejected()
	if err != nil {
		return nil, err
	}
	all := map[types.NamespacedName]ServiceTraffic{}
	err = v.traffic.read(ctx, v.IPVS, func() bool { return v.traffic.recent(age) }, rejected, func(func() *Counted) error {
		return v.Proxy.Inspect(ctx, func(i *proxy.Inspection) {
			add := func(k desired.FrontendKey, more ServiceTraffic) bool {
				f := i.State.FrontendAt(k)
				if f == nil {
					return false
				}
				name := f.Service.Owner()
				s := all[name]
				s.Open += more.Open
				s.Rejected += more.Rejected
				s.Total.add(more.Total)
				s.ConnectionRate += more.ConnectionRate
				s.ByteRate += more.ByteRate
				all[name] = s
				return true
			}
			maps.DeleteFunc(v.traffic.totals, func(k desired.FrontendKey, n *tally) bool {
				return !add(k, ServiceTraffic{Total: n.Total, ConnectionRate: n.connectionRate, ByteRate: n.byteRate})
			})
			for to, n := range v.traffic.existing {
				add(to.key(), ServiceTraffic{Open: uint64(n.connections)})
			}
			for k, n := range rejected {
				add(k, ServiceTraffic{Rejected: n})
			}
		})
	})
	return all, err
}

// addRates adds the rates of a frontend's endpoints, and has them counted from now on.
func (t *Traffic) addRates(n *tally) {
	if n.backends == nil {
		n.backends = map[netip.AddrPort]*tally{}
		return
	}
	if t.Total.ConnectionRate == nil {
		return
	}
	if t.EndpointRates == nil {
		t.EndpointRates = map[string]Rate{}
	}
	for address, b := range n.backends {
		r := t.EndpointRates[address.String()]
		t.EndpointRates[address.String()] = Rate{r.Connections + b.connectionRate, r.Bytes + b.byteRate}
	}
}

type place struct{ service, port int }

// Accounts reports whether conntrack counts bytes.
func Accounts() bool {
	on, err := number("net/netfilter/nf_conntrack_acct")
	return err == nil && on != 0
}

// Sum returns the traffic of all ports of a Service.
func (s *Service) Sum() Traffic {
	all := Traffic{Total: &Counted{}}
	for _, t := range s.Traffic {
		all.Count.merge(t.Count)
		if t.Total != nil {
			all.Total.merge(t.Total)
		}
		all.Rejected, all.RejectedRate = sum(all.Rejected, t.Rejected), sum(all.RejectedRate, t.RejectedRate)
	}
	return all
}
