// SPDX-License-Identifier: Apache-2.0

package see

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"k8s.io/apimachinery/pkg/types"
)

// Question asks for the way of a new connection.
type Question struct {
	From  string // "node" (the default), "outside", an address, or NAMESPACE/POD
	To    string // ADDRESS:PORT[/PROTOCOL], or [NAMESPACE/]SERVICE[:PORT]
	Probe bool   // connect to the endpoints
}

// Explanation is the way of a connection in steps.
type Explanation struct {
	From   string     `json:"from"`
	To     string     `json:"to"` // the frontend
	Steps  []Step     `json:"steps"`
	Client netip.Addr `json:"clientAddress,omitzero"` // zero if unknown
	Class  string     `json:"clientClass"`            // node, pod or outside
}

// Step is one step, or one thing that stops a connection.
type Step struct {
	Title string `json:"title"`
	Text  string `json:"text"`
	Rule  string `json:"rule,omitempty"` // the kernel's object behind it
	Cause Cause  `json:"cause,omitempty"`
	// Possible says that the Cause may stop the connection: whether it does depends on more than
	// its addresses, or on which endpoint is chosen.
	Possible bool `json:"possible,omitempty"`
}

// Cause is why a connection does not work.
type Cause string

// The causes.
const (
	NoService         Cause = "NoService"         // the address is not a frontend
	NoEndpointSlice   Cause = "NoEndpointSlice"   // the Service has none
	EmptySlices       Cause = "EmptySlices"       // its EndpointSlices have no endpoint
	NoSuchPort        Cause = "NoSuchPort"        // its EndpointSlices, or the Service, do not have the port
	NoReadyEndpoint   Cause = "NoReadyEndpoint"   // no endpoint is ready
	NoLocalEndpoint   Cause = "NoLocalEndpoint"   // policy Local, without an endpoint on this node
	SourceRange       Cause = "SourceRange"       // loadBalancerSourceRanges exclude the client
	FrontendContested Cause = "FrontendContested" // another Service has the address and port
	FeatureMissing    Cause = "FeatureMissing"    // the kernel lacks what the family needs
	Behind            Cause = "Behind"            // the proxy has not programmed the last change
	Damaged           Cause = "Damaged"           // the kernel has something else than was programmed
	Firewall          Cause = "Firewall"          // a rule or a policy of another table drops it
	Forwarding        Cause = "Forwarding"        // the node does not forward packets
	NoRoute           Cause = "NoRoute"           // to an endpoint
	NoNeighbor        Cause = "NoNeighbor"        // an endpoint, or the way to it, does not answer on its link
	ReversePath       Cause = "ReversePath"       // rp_filter drops the client's packets
	ConntrackFull     Cause = "ConntrackFull"     // no new connection can be tracked
	NotListening      Cause = "NotListening"      // an endpoint refuses connections
	NoAnswer          Cause = "NoAnswer"          // an endpoint does not answer
)

// maxEndpoints is the number of endpoints that are examined one by one.
const maxEndpoints = 8

// Explain answers a question. An error is about the question.
func (v *View) Explain(ctx context.Context, q Question) (*Explanation, error) {
	x := &explainer{view: v, ctx: ctx}
	if err := x.find(q); err != nil {
		return nil, err
	}
	if x.lookup.Frontend != nil {
		x.frontend()
		x.programmed()
		x.sources()
		if chosen := x.pool(); len(chosen) > 0 {
			x.sockets()
			x.masquerade(chosen)
			x.way(chosen)
			if q.Probe {
				x.probe(chosen)
			}
		}
		x.connections()
	}
	x.From, x.To, x.Client, x.Class = x.client.String(), x.to.String(), x.client.addr, x.client.class
	return &x.Explanation, nil
}

// client is where a connection comes from.
type client struct {
	addr  netip.Addr // invalid if unknown
	class string     // node, pod or outside
}

func (c client) String() string {
	if c.addr.IsValid() {
		return fmt.Sprintf("%s (%s)", c.addr, map[string]string{"node": "this node", "pod": "a pod of this node", "outside": "outside"}[c.class])
	}
	return map[string]string{"node": "this node", "outside": "outside"}[c.class]
}

// explainer writes an Explanation.
type explainer struct {
	Explanation
	view   *View
	ctx    context.Context
	to     desired.FrontendKey
	client client

	lookup  desired.Lookup
	service *desired.ServiceView // nil if the proxy serves no such Service
	waiting time.Time
	failed  string
	direct  bool // sockets are connected straight to endpoints
}

func (x *explainer) family() desired.Family { return desired.FamilyOf(x.to.Addr()) }

func (x *Explanation) step(title, rule, format string, args ...any) {
	x.Steps = append(x.Steps, Step{Title: title, Rule: rule, Text: fmt.Sprintf(format, args...)})
}

func (x *Explanation) stop(c Cause, possible bool, title, rule, format string, args ...any) {
	x.Steps = append(x.Steps, Step{title, fmt.Sprintf(format, args...), rule, c, possible})
}

// find resolves the question, and reads what the proxy knows about the destination.
func (x *explainer) find(q Question) error {
	to, protocolName, hasProtocol := q.To, "TCP", false
	if at := strings.LastIndexByte(to, '/'); at >= 0 && isProtocol(to[at+1:]) {
		to, protocolName, hasProtocol = to[:at], strings.ToUpper(to[at+1:]), true
	}
	at, notAddress := netip.ParseAddrPort(to)
	name, port := types.NamespacedName{}, ""
	if notAddress != nil {
		if _, err := netip.ParseAddr(to); err == nil {
			return fmt.Errorf("%q lacks a port: ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", to)
		}
		name.Namespace, name.Name = "default", to
		if namespace, rest, ok := strings.Cut(to, "/"); ok {
			name = types.NamespacedName{Namespace: namespace, Name: rest}
		}
		name.Name, port, _ = strings.Cut(name.Name, ":")
	} else {
		for _, p := range desired.Protocols {
			if p.String() == protocolName {
				x.to = desired.FrontendKey{AddrPort: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), Protocol: p}
			}
		}
	}
	var problem error
	slicesOfName := 0
	inspect := func(i *proxy.Inspection) {
		x.waiting, x.failed = i.Waiting, i.Failed
		if notAddress != nil {
			slicesOfName = i.State.Slices(name)
			x.view1(i.State, name)
			if x.service == nil {
				return
			}
			if x.to, problem = chooseFrontend(x.service, port, protocolName, hasProtocol); problem != nil {
				return
			}
		}
		x.lookup = i.State.Lookup(x.to)
		if x.lookup.Service.Name != "" {
			x.view1(i.State, x.lookup.Service)
		}
	}
	if err := x.view.Proxy.Inspect(x.ctx, inspect); err != nil {
		return errors.Join(errors.New("the proxy's loop does not answer; see 'slipstream status'"), err)
	}
	if err := x.from(q.From); err != nil || problem != nil {
		return errors.Join(err, problem)
	}
	switch {
	case notAddress != nil && x.service == nil:
		more := ""
		if slicesOfName > 0 {
			more = fmt.Sprintf(" It has %d EndpointSlices, so it may be headless, of type ExternalName, or of another proxy.", slicesOfName)
		}
		x.stop(NoService, false, "Service", "", "This proxy serves no Service %s.%s", name, more)
	case x.lookup.Frontend == nil:
		x.noFrontend()
	}
	return nil
}

func isProtocol(s string) bool {
	return slices.ContainsFunc(desired.Protocols, func(p desired.Protocol) bool { return strings.EqualFold(p.String(), s) })
}

// view1 views one Service.
func (x *explainer) view1(s *desired.State, name types.NamespacedName) {
	s.ViewServices(func(n types.NamespacedName) bool { return n == name }, true, func(v *desired.ServiceView) { x.service = v })
}

// chooseFrontend returns the first frontend of a Service, or of a port by name or number.
func chooseFrontend(s *desired.ServiceView, port, protocol string, hasProtocol bool) (desired.FrontendKey, error) {
	for _, p := range s.Ports {
		_, name, _ := strings.Cut(p.Name, ":")
		for _, f := range p.Frontends {
			if (port == "" || port == name || port == strconv.Itoa(int(f.Key.Port()))) && (!hasProtocol || p.Protocol == protocol) {
				return f.Key, nil
			}
		}
	}
	var ports []string
	for _, p := range s.Ports {
		if len(p.Frontends) > 0 {
			_, name, _ := strings.Cut(p.Name, ":")
			ports = append(ports, fmt.Sprintf("%s %d/%s", name, p.Frontends[0].Key.Port(), p.Protocol))
		}
	}
	return desired.FrontendKey{}, fmt.Errorf("the Service has no port %s; it has %s", port, strings.Join(ports, ", "))
}

// from classifies the client.
func (x *explainer) from(text string) error {
	switch text {
	case "", "node":
		x.client = client{class: "node"}
		return nil
	case "outside":
		x.client = client{class: "outside"}
		return nil
	}
	a, err := x.clientAddr(text)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	a = a.Unmap()
	if x.to.Addr().IsValid() && desired.FamilyOf(a) != x.family() {
		return fmt.Errorf("--from: %s and %s are of different families", a, x.to)
	}
	x.client = client{addr: a, class: "outside"}
	local := x.lookup.Local
	switch in := clientLink(a); {
	case slices.Contains(x.lookup.OwnAddresses, a):
		x.client.class = "node"
	case local.CIDRs[desired.FamilyOf(a)].Contains(a),
		local.Iface != "" && (in == local.Iface || local.IsPrefix && strings.HasPrefix(in, local.Iface)):
		x.client.class = "pod"
	}
	return nil
}

// clientAddr returns the address of a client, which may be a pod, in the family of the frontend.
func (x *explainer) clientAddr(text string) (netip.Addr, error) {
	namespace, name, isPod := strings.Cut(text, "/")
	if !isPod {
		a, err := netip.ParseAddr(text)
		if err != nil {
			err = fmt.Errorf("%q is neither an address, nor NAMESPACE/POD, node or outside", text)
		}
		return a, err
	}
	if x.view.Pod == nil {
		return netip.Addr{}, errors.New("pods are known by name only with the Kubernetes API; give the pod's address")
	}
	node, all, err := x.view.Pod(x.ctx, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return netip.Addr{}, err
	}
	if node != x.view.Node {
		return netip.Addr{}, fmt.Errorf("pod %s is on node %q; ask the proxy of that node", text, node)
	}
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return !x.to.IsValid() || desired.FamilyOf(a) == x.family() })
	if i < 0 {
		return netip.Addr{}, fmt.Errorf("pod %s has no %s address; it has %v", text, x.family(), all)
	}
	return all[i], nil
}

// noFrontend describes the handling of packets to a destination that is not a frontend.
func (x *explainer) noFrontend() {
	l := &x.lookup
	if x.view.Without[x.family()] {
		x.featureMissing()
		return
	}
	switch {
	case l.ClusterIP:
		x.stop(NoSuchPort, false, "Frontend", "", "%s is the ClusterIP of Service %s, which has no port %d/%s. Connections to other ports are refused.", x.to.Addr(), l.Service, x.to.Port(), x.to.Protocol)
	case l.ServiceCIDR.IsValid():
		x.stop(NoService, false, "Frontend", "", "No Service has the address %s. It is in the ServiceCIDR %s, so packets to it are dropped.", x.to.Addr(), l.ServiceCIDR)
	case l.NodeAddress:
		x.stop(NoService, false, "Frontend", "", "%s is an address of this node, and no Service has the NodePort %d/%s. The packets are left to the node itself.", x.to.Addr(), x.to.Port(), x.to.Protocol)
	default:
		x.stop(NoService, false, "Frontend", "", "No Service has %s. Slipstream leaves these packets alone.", x.to)
	}
}

func (x *explainer) viewPorts() []desired.PortView {
	if x.service == nil {
		return nil
	}
	return x.service.Ports
}

func (x *explainer) featureMissing() {
	x.stop(FeatureMissing, false, "Kernel", "", "%s is not served, as the kernel lacks what mode %s needs: %s", x.family(), x.view.Mode, strings.Join(x.view.Missing, "; "))
}

// frontend names the frontend and the kernel's object for it.
func (x *explainer) frontend() {
	f := x.lookup.Frontend
	x.step("Frontend", x.element(), "%s is a %s of Service %s.", x.to, f.Kind, f.Service)
	for _, p := range x.viewPorts() {
		for _, other := range p.Frontends {
			if other.Owner != "" {
				x.stop(FrontendContested, true, "Frontend", "", "Its %s %s belongs to Service %s instead.", other.Kind, other.Address, other.Owner)
			}
		}
	}
	switch {
	case x.failed != "":
		x.stop(Behind, true, "Proxy", "", "The kernel has not taken the last change, so it may have an older state: %s", x.failed)
	case !x.waiting.IsZero() && time.Since(x.waiting) > time.Second:
		x.stop(Behind, true, "Proxy", "", "A change has been waiting for %s, so the kernel may have an older state.", time.Since(x.waiting).Round(time.Second))
	}
}

// element names the kernel's object for the frontend.
func (x *explainer) element() string {
	f := x.lookup.Frontend
	switch x.view.Mode {
	case config.IPVS:
		return "virtual server " + x.to.String()
	case config.IPTables:
		return "chains " + ourChains + "* of the table nat"
	}
	family, set := "ip", "frontends"
	if x.family() == desired.IPv6 {
		family = "ip6"
	}
	if f.Scope == desired.Local {
		set = "local-" + set
	}
	if f.OnNode() {
		return fmt.Sprintf("map %s %s %s { %s . %d }", family, ourTable, strings.Replace(set, "frontends", "node-ports", 1), strings.ToLower(x.to.Protocol.String()), x.to.Port())
	}
	return fmt.Sprintf("map %s %s %s { %s . %s . %d }", family, ourTable, set, x.to.Addr(), strings.ToLower(x.to.Protocol.String()), x.to.Port())
}

// programmed compares the frontend with what the kernel has.
func (x *explainer) programmed() {
	r, err := x.view.OpenReader(x.ctx)
	if err != nil {
		x.step("Kernel", "", "The kernel's content could not be read: %v", err)
		return
	}
	defer r.Close()
	key := x.lookup.Frontend.FrontendKey
	want := dataplane.ContentOf(&x.lookup.Content)
	difference, err := dataplane.Lasting(x.ctx, func() (string, error) {
		all, err := r.Read(x.ctx)
		if err != nil {
			return "", err
		}
		got := dataplane.NewContent()
		if target, ok := all.Frontends[key]; ok {
			got.Frontends[key] = target
		}
		if len(all.Faults) > 0 && len(got.Frontends) == 0 {
			got.Faults = all.Faults
		}
		return dataplane.Difference(want, got), nil
	})
	switch {
	case err != nil:
		x.step("Kernel", "", "The kernel's content could not be read: %v", err)
	case difference != "":
		x.stop(Damaged, false, "Kernel", "", "The kernel does not have what was programmed (-) but something else (+); run 'slipstream verify':\n%s", difference)
	default:
		x.step("Kernel", "", "The kernel has what was programmed.")
	}
}

// sources compares the client with the source ranges.
func (x *explainer) sources() {
	s := x.lookup.Frontend.Sources
	if s == nil {
		return
	}
	all := fmt.Sprint(s.All())
	contains := slices.ContainsFunc(s.All(), func(p netip.Prefix) bool { return p.Contains(x.client.addr) })
	switch {
	case !x.client.addr.IsValid():
		x.stop(SourceRange, true, "Source ranges", "", "Only clients in %s may connect (loadBalancerSourceRanges).", all)
	case !contains:
		x.stop(SourceRange, false, "Source ranges", "", "%s is in none of the loadBalancerSourceRanges %s, so its packets are dropped.", x.client.addr, all)
	default:
		x.step("Source ranges", "", "%s is in the loadBalancerSourceRanges %s.", x.client.addr, all)
	}
}

// chosen is an endpoint that may be chosen, and how likely that is.
type chosen struct {
	desired.Backend
	share float64 // 0 to 1
}

// pool explains the choice of an endpoint, and returns those that may be chosen.
func (x *explainer) pool() (all []chosen) {
	f := x.lookup.Frontend
	id, scope := f.Pool, f.Scope
	why := "Traffic policy " + scope.String() + " applies"
	if f.LocalPool != desired.NoPool {
		why = "externalTrafficPolicy is Local, but does not apply to clients on this node"
		if x.client.class == "outside" {
			id, scope, why = f.LocalPool, desired.Local, "externalTrafficPolicy Local applies to clients from outside"
		}
	}
	i := slices.IndexFunc(x.lookup.Content.Pools, func(p desired.PoolChange) bool { return p.ID == id })
	p := &x.lookup.Content.Pools[i]
	port := x.port(f)
	if port == nil {
		return nil
	}
	takes := "endpoints"
	for _, view := range port.Pools {
		if view.Scope == scope.String() {
			takes = view.Takes
		}
	}
	if len(p.Added) == 0 {
		x.empty(port, why, p.IfEmpty)
		x.unused(port, scope)
		return nil
	}
	weights, sum := map[desired.Backend]uint64{}, uint64(0)
	for _, b := range p.Added {
		weights[b] = desired.DefaultWeight
	}
	for _, w := range p.Weights {
		weights[w.Backend] = w.Weight
	}
	for _, w := range weights {
		sum += w
	}
	for b, w := range weights {
		all = append(all, chosen{b, float64(w) / float64(max(sum, 1))})
	}
	slices.SortFunc(all, func(a, b chosen) int { return cmp.Or(cmp.Compare(b.share, a.share), a.Compare(b.Backend)) })
	how := map[desired.Algorithm]string{
		desired.RoundRobin: "in turn", desired.LeastConnections: "by numbers of connections", desired.Maglev: "by the client's address", desired.MaglevPort: "by the client's address and port",
	}[p.Algorithm]
	x.step("Pool", "", "%s: %d of %d endpoints may be chosen, %s, the %s.", why, len(all), port.Total, cmp.Or(how, "at random"), takes)
	if f.Affinity > 0 {
		all = x.affinity(f, all)
	}
	for i, c := range all {
		if i == maxEndpoints {
			x.step("Endpoint", "", "And %d more.", len(all)-i)
			break
		}
		x.step("Endpoint", "", "%s with probability %.4g %%.", c.Backend, 100*c.share)
	}
	x.unused(port, scope)
	return all
}

// affinity explains session affinity, and returns the endpoints that may be chosen: only the one that the
// client had before, if that is known.
func (x *explainer) affinity(f *desired.Frontend, all []chosen) []chosen {
	const title = "Affinity"
	rule := fmt.Sprintf("A client's address keeps its endpoint until %d s after its last new connection (sessionAffinity ClientIP)", f.Affinity)
	if !x.client.addr.IsValid() || x.view.ClientsBackend == nil {
		x.step(title, "", "%s.", rule)
		return all
	}
	last, left, err := x.view.ClientsBackend(f.Service, f.Protocol, x.client.addr)
	i := slices.IndexFunc(all, func(c chosen) bool { return c.Backend == last })
	switch {
	case err != nil:
		x.step(title, "", "%s. The client's endpoint could not be read: %v", rule, err)
	case last == desired.Backend{}:
		x.step(title, "", "%s. %s has none.", rule, x.client.addr)
	case i < 0:
		x.step(title, "", "%s. %s had endpoint %s, which is not used any more, so it gets another one.", rule, x.client.addr, last)
	default:
		x.step(title, "", "%s. %s has endpoint %s, for %s if it makes no other connection.", rule, x.client.addr, last, left.Round(time.Second))
		all = []chosen{{last, 1}}
	}
	return all
}

// port returns the view of the port of a frontend.
func (x *explainer) port(f *desired.Frontend) *desired.PortView {
	for i, p := range x.viewPorts() {
		if p.Name == f.Service.String() && p.Family == x.family().String() && p.Protocol == f.Protocol.String() {
			return &x.service.Ports[i]
		}
	}
	return nil
}

// empty explains a pool without backends.
func (x *explainer) empty(p *desired.PortView, why string, verdict desired.Verdict) {
	happens := map[desired.Verdict]string{desired.Reject: "Connections are refused", desired.Drop: "Packets are dropped"}[verdict]
	cause, text := NoReadyEndpoint, fmt.Sprintf("None of the %d endpoints is ready", p.Total)
	switch {
	case p.Slices == 0:
		cause, text = NoEndpointSlice, "The Service has no EndpointSlice. Check its selector, and that kube-controller-manager runs"
	case p.Total == 0 && p.Portless > 0:
		cause, text = NoSuchPort, fmt.Sprintf("None of its %d EndpointSlices has the port %s. Check targetPort and the names of ports", p.Slices, p.Name)
	case p.Total == 0:
		cause, text = EmptySlices, fmt.Sprintf("Its %d EndpointSlices have no endpoint. Check the Service's selector, and that its pods run", p.Slices)
	case verdict == desired.Drop:
		cause, text = NoLocalEndpoint, fmt.Sprintf("None of the %d endpoints is on this node and usable", p.Total)
	}
	x.stop(cause, false, "Pool", "", "%s. %s. %s.", why, text, happens)
}

// unused lists endpoints that are not used, with the reasons.
func (x *explainer) unused(p *desired.PortView, scope desired.Scope) {
	n := 0
	for _, e := range p.Endpoints {
		if why := e.Use[scope.String()]; why != "" && why != desired.Used.String() {
			if n++; n <= maxEndpoints {
				x.step("Not used", "", "%s: %s.", e.Address, why)
			}
		}
	}
	if n > maxEndpoints {
		x.step("Not used", "", "And %d more.", n-maxEndpoints)
	}
}

// masquerade says whether the endpoint sees the client's address.
func (x *explainer) masquerade(all []chosen) {
	f, m := x.lookup.Frontend, x.lookup.Masquerade
	policy := m.ClusterIPs
	switch {
	case f.LocalPool != desired.NoPool:
		policy = m.Local
	case f.Kind.External():
		policy = m.External
	}
	known := x.lookup.Local.Known(x.family())
	masquerades, why := false, ""
	switch {
	case policy == desired.MasqueradeAlways && f.Kind.External():
		masquerades, why = true, "replies of connections to an address of this kind have to return through this node"
	case policy == desired.MasqueradeAlways:
		masquerades, why = true, "masqueradeAll is set"
	case policy == desired.MasqueradeNode:
		masquerades = x.client.class == "node"
		why = map[bool]string{false: "externalTrafficPolicy is Local", true: "externalTrafficPolicy Local keeps only the addresses of other clients"}[masquerades]
	case !known:
		why = "clusterCIDR or detectLocalMode would have to say which clients are pods of this node, for others to be masqueraded"
	default:
		masquerades = x.client.class != "pod"
		why = map[bool]string{false: "a pod of this node reaches a ClusterIP with its own address", true: "only pods of this node reach a ClusterIP with their own address"}[masquerades]
	}
	if slices.ContainsFunc(all, func(c chosen) bool { return c.Addr() == x.client.addr }) {
		why += "; but a connection that is sent back to its own pod is masqueraded"
	}
	if masquerades {
		x.step("Masquerade", "", "The endpoint sees an address of this node in place of the client's: %s.", why)
	} else {
		x.step("Masquerade", "", "The endpoint sees the client's address: %s.", why)
	}
}

// connections shows what conntrack has of the frontend.
func (x *explainer) connections() {
	var total existing
	by := map[string]existing{}
	err := translated(x.ctx, func(f *flows.Flow) {
		if f.Frontend() == x.to && (!x.client.addr.IsValid() || x.client.addr == f.Source.Addr()) {
			total = total.with(f)
			by[f.Backend.String()] = by[f.Backend.String()].with(f)
		}
	})
	if err != nil {
		x.step("Conntrack", "", "Connections could not be read: %v", err)
		return
	}
	fast := "There is no fast path"
	if x.view.FastPath != nil {
		fast = fmt.Sprintf("%d of them are on the fast path", total.offloaded)
	}
	if x.lookup.Frontend.SlowPath {
		fast = "The Service is kept off the fast path by its annotation"
	}
	x.step("Conntrack", "", "There are %d connections to %s now. %s.", total.connections, x.to, fast)
	for _, backend := range slices.Sorted(maps.Keys(by)) {
		c := by[backend]
		if c.unanswered > 0 && x.to.Protocol == desired.TCP {
			x.stop(NoAnswer, true, "Conntrack", "", "%d of %d connections to endpoint %s have no reply.", c.unanswered, c.connections, backend)
		}
	}
}
