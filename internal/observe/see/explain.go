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

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Question asks for the way of a new connection.
type Question struct {
	From      string // "node" (the default), "outside", an address, or NAMESPACE/POD
	To        string // ADDRESS:PORT[/PROTOCOL], [NAMESPACE/]SERVICE[:PORT][/PROTOCOL], a name of DNS, or a URL
	Namespace string // of a Service; without any, default has precedence, and then the only one with the name
	Probe     bool   // connect to the endpoints
	OnlyHere  bool   // probe those of this node only
}

// Explanation is the way of a connection in steps.
type Explanation struct {
	Verdict string        `json:"verdict"` // what follows from the steps, and what to do
	From    string        `json:"from"`
	To      string        `json:"to"` // the frontend, or what was asked for
	Steps   []Step        `json:"steps"`
	Client  netip.Addr    `json:"clientAddress,omitzero"` // zero if unknown
	Class   desired.Class `json:"clientClass"`

	Unchecked []string `json:"notChecked,omitempty"`
	Answered  bool     `json:"answered,omitempty"` // the connection of a trace
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
	NoService         Cause = "NoService" // the address is not a frontend
	NoEndpointSlice         = Cause(desired.NoEndpointSlice)
	EmptySlices             = Cause(desired.EmptySlices)
	NoSuchPort              = Cause(desired.NoSuchPort) // or the Service does not have the port
	NoReadyEndpoint         = Cause(desired.NoReadyEndpoint)
	NoLocalEndpoint         = Cause(desired.NoLocalEndpoint)
	SourceRange       Cause = "SourceRange"       // loadBalancerSourceRanges exclude the client
	FrontendContested Cause = "FrontendContested" // another Service has the address and port
	FeatureMissing    Cause = "FeatureMissing"    // the kernel lacks what the family needs
	Behind            Cause = "Behind"            // the proxy has not programmed the last change
	Damaged           Cause = "Damaged"           // the kernel has something else than was programmed
	Firewall          Cause = "Firewall"          // a rule or a policy of another table drops it
	Forwarding        Cause = "Forwarding"        // the node does not forward packets
	NoRoute           Cause = "NoRoute"           // to an endpoint
	Bridge            Cause = "Bridge"            // replies do not pass the rules, as the client and the endpoint are on one bridge
	Hairpin           Cause = "Hairpin"           // a bridge sends no packet back to the port of the pod from which it comes
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
	if x.decision.Frontend != nil {
		x.frontend()
		x.programmed()
		x.sources()
		var chosen []desired.Candidate
		if x.decision.Allowed != desired.No {
			chosen = x.pool()
		}
		if len(chosen) > 0 {
			x.sockets()
			x.masquerade(chosen)
			x.Unchecked = []string{"whether endpoints listen", "what pods and other nodes drop", "rules of bridges and netdev, eBPF"}
			x.path(chosen)
			if q.Probe {
				x.probe(chosen, q.OnlyHere)
			}
		}
		x.connections()
	}
	x.From, x.To, x.Client, x.Class = describeOrigin(x.client), q.To, x.client.Addr, x.client.Class
	if x.to.IsValid() {
		x.To = x.to.String()
	}
	x.conclude()
	return &x.Explanation, nil
}

// conclude sets the verdict.
func (x *Explanation) conclude() {
	var worst *Step
	for i := range x.Steps {
		if s := &x.Steps[i]; s.Cause != "" && (worst == nil || worst.Possible && !s.Possible) {
			worst = s
		}
	}
	x.Verdict = "Nothing found that stops it."
	if worst != nil {
		text, _, _ := strings.Cut(worst.Text, "\n")
		x.Verdict = worst.Mark() + text
		if worst.Rule != "" {
			x.Verdict += " [" + worst.Rule + "]"
		}
		if do := toDo[worst.Cause]; do != "" && !strings.Contains(text, ": look ") {
			x.Verdict += " To do: " + do + "."
		}
	}
	switch {
	case x.Answered:
		x.Verdict = "A connection was answered. " + x.Verdict
	case worst == nil && len(x.Unchecked) > 0:
		x.Verdict += " Not checked: " + strings.Join(x.Unchecked, ", ") + "; use --trace."
	}
}

// Stops reports whether something stops the connection for certain.
func (x *Explanation) Stops() bool {
	return slices.ContainsFunc(x.Steps, func(s Step) bool { return s.Cause != "" && !s.Possible })
}

// Mark says that the step stops the connection, and why; "" if it does not.
func (s *Step) Mark() string {
	switch {
	case s.Cause == "":
		return ""
	case s.Possible:
		return "MAY STOP (" + string(s.Cause) + "): "
	}
	return "STOPS HERE (" + string(s.Cause) + "): "
}

func describeOrigin(o desired.Origin) string {
	class := map[desired.Class]string{desired.FromNode: "this node", desired.FromPod: "a pod", desired.FromOutside: "outside"}[o.Class]
	if o.Addr.IsValid() {
		return fmt.Sprintf("%s (%s)", o.Addr, class)
	}
	return class
}

// explainer writes an Explanation.
type explainer struct {
	Explanation
	view   *View
	ctx    context.Context
	to     desired.FrontendKey
	client desired.Origin
	named  bool // the question names a Service, not an address

	decision desired.Decision
	detail   dataplane.Detail     // of the decision, if there is a frontend
	service  *desired.ServiceView // nil if the proxy serves no such Service
	waiting  time.Time
	failed   string
	direct   bool // sockets are connected straight to endpoints
}

func (x *explainer) family() desired.Family { return desired.FamilyOf(x.to.Addr()) }

func (x *Explanation) step(title, rule, format string, args ...any) {
	x.Steps = append(x.Steps, Step{Title: title, Rule: rule, Text: fmt.Sprintf(format, args...)})
}

func (x *Explanation) stop(c Cause, possible bool, title, rule, format string, args ...any) {
	x.Steps = append(x.Steps, Step{title, fmt.Sprintf(format, args...), rule, c, possible})
}

// destination is what a question asks for: an address, or a port of a Service.
type destination struct {
	at             netip.AddrPort
	name           types.NamespacedName // an empty namespace is any
	port, protocol string               // of a Service: name or number; empty for any
}

// parseDestination parses Question.To.
func parseDestination(text string) (d destination, err error) {
	urlPort := ""
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		text, _, _ = strings.Cut(rest, "/")
		urlPort = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	if at := strings.LastIndexByte(text, '/'); at >= 0 {
		if p, known := protocolOf(text[at+1:]); known {
			text, d.protocol = text[:at], p.String()
		}
	}
	if d.at, err = netip.ParseAddrPort(text); err == nil {
		return d, nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return d, fmt.Errorf("%q lacks a port: ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", text)
	}
	if before, rest, ok := strings.Cut(text, "/"); ok {
		if text = rest; !slices.Contains([]string{"svc", "service", "services"}, before) { // as kubectl names it
			d.name.Namespace = before
		}
	}
	text, d.port, _ = strings.Cut(text, ":")
	labels := strings.Split(text, ".") // NAME.NAMESPACE.svc.cluster.local
	if d.name.Name = labels[0]; len(labels) > 1 && d.name.Namespace == "" {
		d.name.Namespace = labels[1]
	}
	d.port = cmp.Or(d.port, urlPort)
	return d, nil
}

// resolve views the Service of the name, or returns names that are like it.
func (x *explainer) resolve(s *desired.State, name types.NamespacedName) (like []string) {
	var same, others []types.NamespacedName
	s.ViewServices(func(n types.NamespacedName) bool {
		if n.Name == name.Name && (name.Namespace == "" || n.Namespace == name.Namespace) {
			same = append(same, n)
		} else if distance(n.Name, name.Name) <= min(2, len(name.Name)-1) {
			others = append(others, n)
		}
		return false
	}, false, nil)
	if i := slices.IndexFunc(same, func(n types.NamespacedName) bool { return n.Namespace == cmp.Or(name.Namespace, "default") }); i >= 0 {
		same = same[i : i+1]
	}
	if len(same) == 1 {
		x.view1(s, same[0])
		return nil
	}
	slices.SortFunc(others, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(distance(a.Name, name.Name), distance(b.Name, name.Name)), compareNames(a, b))
	})
	slices.SortFunc(same, compareNames)
	others = append(same, others...)
	return collect.From(others[:min(len(others), 3)], types.NamespacedName.String)
}

// distance is the number of characters to insert, delete or replace in a to get b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal, row[j+1] = row[j+1], min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// find resolves the question, and reads what the proxy knows about the destination.
func (x *explainer) find(q Question) error {
	d, err := parseDestination(q.To)
	if err != nil {
		return err
	}
	d.name.Namespace = cmp.Or(d.name.Namespace, q.Namespace)
	if p, known := protocolOf(cmp.Or(d.protocol, "TCP")); known && d.at.IsValid() {
		x.to = desired.FrontendKey{AddrPort: netip.AddrPortFrom(d.at.Addr().Unmap(), d.at.Port()), Protocol: p}
	}
	inspect := func(look func(*proxy.Inspection)) error {
		if err := x.view.Proxy.Inspect(x.ctx, look); err != nil {
			return errors.Join(errors.New("the proxy's loop does not answer; see 'slipstream status'"), err)
		}
		return nil
	}
	var like []string
	if x.named = !d.at.IsValid(); x.named {
		if err := inspect(func(i *proxy.Inspection) { like = x.resolve(i.State, d.name) }); err != nil {
			return err
		}
		if x.service != nil {
			if x.to, err = chooseFrontend(x.service, d.port, d.protocol); err != nil {
				return err
			}
		}
	}
	link, err := x.from(q.From)
	if err != nil {
		return err
	}
	if x.named && x.service == nil {
		name := strings.TrimPrefix(d.name.String(), "/")
		if len(like) > 0 {
			x.stop(NoService, false, "Service", "", "This proxy serves no Service %s. Did you mean %s?", name, strings.Join(like, " or "))
		} else {
			x.stop(NoService, false, "Service", "", "This proxy serves no Service %s. If there is one, it is headless, of type ExternalName, or of another proxy.", name)
		}
		return nil
	}
	if err := inspect(func(i *proxy.Inspection) {
		x.waiting, x.failed = i.Waiting, i.Failed
		if x.client.Addr.IsValid() {
			x.client = i.State.Origin(x.client.Addr, link)
		}
		x.decision = i.State.Decide(x.client, x.to)
		x.view.chooses(i, &x.decision.Port)
		if x.decision.Service.Name != "" {
			x.view1(i.State, x.decision.Service)
		}
		if f := x.decision.Frontend; f != nil {
			x.detail = x.view.Describe(f, x.decision.Pool)
		}
	}); err != nil {
		return err
	}
	if x.decision.Frontend == nil {
		x.noFrontend()
	}
	return nil
}

func protocolOf(name string) (p desired.Protocol, known bool) {
	i := slices.IndexFunc(desired.Protocols, func(p desired.Protocol) bool { return strings.EqualFold(p.String(), name) })
	if i < 0 {
		return p, false
	}
	return desired.Protocols[i], true
}

// view1 views one Service.
func (x *explainer) view1(s *desired.State, name types.NamespacedName) {
	s.ViewServices(func(n types.NamespacedName) bool { return n == name }, false, func(v *desired.ServiceView) { x.service = v })
}

// chooseFrontend returns the first frontend of a Service, or of a port by name or number.
func chooseFrontend(s *desired.ServiceView, port, protocol string) (desired.FrontendKey, error) {
	for _, p := range s.Ports {
		_, name, _ := strings.Cut(p.Name, ":")
		for _, f := range p.Frontends {
			if (port == "" || port == name || port == strconv.Itoa(int(f.Key.Port()))) && (protocol == "" || p.Protocol == protocol) {
				return f.Key, nil
			}
		}
	}
	return desired.FrontendKey{}, fmt.Errorf("Service %s/%s has no port %s; it has %s", s.Namespace, s.Name, strings.Trim(port+"/"+protocol, "/"), portsOf(s))
}

func portsOf(s *desired.ServiceView) string {
	var ports []string
	for _, p := range s.Ports {
		if len(p.Frontends) > 0 {
			_, name, _ := strings.Cut(p.Name, ":")
			ports = append(ports, strings.TrimSpace(fmt.Sprintf("%s %d/%s", name, p.Frontends[0].Key.Port(), p.Protocol)))
		}
	}
	return strings.Join(slices.Compact(ports), ", ")
}

// from finds the client, and the interface on which its packets arrive. State.Origin classifies those
// with an address.
func (x *explainer) from(text string) (link string, err error) {
	switch text {
	case "", "node":
		x.client.Class = desired.FromNode
		return "", nil
	case "outside":
		x.client.Class = desired.FromOutside
		return "", nil
	}
	a, err := x.clientAddr(text)
	if err != nil {
		return "", fmt.Errorf("--from: %w", err)
	}
	a = a.Unmap()
	if x.to.Addr().IsValid() && desired.FamilyOf(a) != x.family() {
		return "", fmt.Errorf("--from: %s and %s are of different families", a, x.to)
	}
	x.client = desired.Origin{Class: desired.FromOutside, Addr: a}
	return clientLink(a), nil
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
	if x.view.Pods == nil {
		return netip.Addr{}, errors.New("pods are known by name only with the Kubernetes API; give the pod's address")
	}
	all, err := x.view.Pods(x.ctx, namespace, "metadata.name="+name)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("find pod %s: %w", text, err)
	case len(all) == 0:
		return netip.Addr{}, fmt.Errorf("there is no pod %s", text)
	case all[0].Spec.NodeName != x.view.Node:
		return netip.Addr{}, fmt.Errorf("pod %s is on node %q; ask the proxy of that node", text, all[0].Spec.NodeName)
	}
	for _, ip := range all[0].Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && (!x.to.IsValid() || desired.FamilyOf(a) == x.family()) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("pod %s has no %s address", text, x.family())
}

// noFrontend describes the handling of packets to a destination that is not a frontend.
func (x *explainer) noFrontend() {
	if x.view.Without[x.family()] {
		x.stop(FeatureMissing, false, "Kernel", "", "%s is not served, as the kernel lacks what mode %s needs: %s", x.family(), x.view.Mode, strings.Join(x.view.Missing, "; "))
		return
	}
	d, port := &x.decision, fmt.Sprintf("%d/%s", x.to.Port(), x.to.Protocol)
	switch d.None {
	case desired.UnknownPort:
		has := ""
		if x.service != nil {
			has = "; it has " + portsOf(x.service)
		}
		x.stop(NoSuchPort, false, "Frontend", "", "%s is an address of Service %s, which has no port %s%s. Connections to other ports are refused.", x.to.Addr(), d.Service, port, has)
	case desired.Unallocated:
		x.stop(NoService, false, "Frontend", "", "No Service has the address %s. It is in the ServiceCIDR %s, so packets to it are dropped.", x.to.Addr(), d.ServiceCIDR)
	case desired.NoNodePort:
		x.stop(NoService, false, "Frontend", "", "%s is an address of this node, and no Service has the NodePort %s. The packets are left to the node itself.", x.to.Addr(), port)
	case desired.NotServing:
		where := "at " + plain.List(d.ServedAt, ", ") + " only (nodePortAddresses)"
		if len(d.ServedAt) == 0 {
			where = fmt.Sprintf("at no %s address: it has none that nodePortAddresses selects, by default those of the Node object", x.family())
		}
		x.stop(NoService, false, "Frontend", "", "%s is the NodePort of Service %s, which this node serves %s.", port, d.Service, where)
	case desired.Relayed:
		x.step("Frontend", "", "%s is the NodePort of Service %s on a loopback address. A relay of this proxy in user space serves it.", x.to, d.Service)
	case desired.NotOnLoopback:
		x.stop(NoService, false, "Frontend", "", "%s is a NodePort on a loopback address, where it is refused.", x.to)
	default:
		hint := ""
		if d.Service.Name != "" {
			hint = fmt.Sprintf(" %s is the NodePort of Service %s, but %s is no address of this node: ask the node that has it.", port, d.Service, x.to.Addr())
		}
		x.stop(NoService, false, "Frontend", "", "No Service has %s. Slipstream leaves these packets alone.%s", x.to, hint)
	}
}

// frontend names the frontend and the kernel's object for it.
func (x *explainer) frontend() {
	f := x.decision.Frontend
	article := map[bool]string{true: "an", false: "a"}[strings.HasPrefix(f.Kind.String(), "e")]
	x.step("Frontend", x.detail.Object, "%s is %s %s of Service %s.", x.to, article, f.Kind, f.Service)
	for _, p := range x.service.Ports {
		for _, other := range p.Frontends {
			if x.named && other.Owner != "" {
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

// programmed compares the frontend with what the kernel has.
func (x *explainer) programmed() {
	r, err := x.view.OpenReader(x.ctx)
	if err != nil {
		x.step("Kernel", "", "The kernel's content could not be read: %v", err)
		return
	}
	defer r.Close()
	want := dataplane.ContentOf(&x.decision.Content)
	difference, err := dataplane.Lasting(x.ctx, func() (string, error) {
		got, err := r.ReadFrontend(x.ctx, &x.decision.Content)
		if err != nil {
			return "", err
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
	if l := x.decision.Frontend.Limits.String(); l != "" {
		x.step("Limits", "", "The Service has %s.", l)
	}
	s := x.decision.Frontend.Sources
	if s == nil {
		return
	}
	all := fmt.Sprint(s.All())
	switch x.decision.Allowed {
	case desired.Unknown:
		x.stop(SourceRange, true, "Source ranges", "", "Only clients in %s may connect (loadBalancerSourceRanges).", all)
	case desired.No:
		x.stop(SourceRange, false, "Source ranges", "", "%s is in none of the loadBalancerSourceRanges %s, so its packets are dropped.", x.client.Addr, all)
	case desired.Yes:
		x.step("Source ranges", "", "%s is in the loadBalancerSourceRanges %s.", x.client.Addr, all)
	}
}

// schedulers describe how endpoints are chosen, by the names of algorithms and of IPVS schedulers.
var schedulers = map[string]string{
	"random": "at random", "rr": "in turn (rr)", "wrr": "in turn, by weight (wrr)", "lc": "by numbers of connections (lc)", "wlc": "by numbers of connections, by weight (wlc)",
	"sh": "by the client's address", "maglev": "by the client's address", "maglev,maglev-port": "by the client's address and port",
}

// pool explains the choice of an endpoint, and returns those that may be chosen.
func (x *explainer) pool() []desired.Candidate {
	d := &x.decision
	why := [...]string{
		desired.ScopePolicy:   "Traffic policy " + d.Scope.String() + " applies",
		desired.ExternalLocal: "externalTrafficPolicy Local applies to clients from outside",
		desired.FromInside:    "externalTrafficPolicy is Local, but does not apply to clients on this node",
		desired.FailsOver:     "No endpoint would serve clients from outside on this node, and " + desired.AnnotationFailover + " is passthrough",
	}[d.Policy]
	if len(d.Candidates) == 0 {
		happens := [...]string{"Connections are refused", "Packets are dropped", "Packets are passed on by the node's routes"}[d.IfEmpty]
		x.stop(Cause(d.Empty), false, "Pool", "", "%s. %s. %s.", why, WhyEmpty(&d.Port, d.Empty), happens)
		x.unused()
		return nil
	}
	scheduler := cmp.Or(x.detail.Scheduler, d.Algorithm.String())
	how, known := schedulers[scheduler]
	if !known {
		how = "by the IPVS scheduler " + scheduler
	}
	x.step("Pool", "", "%s: %d of %s may be chosen, %s: the %s.", why, len(d.Candidates), plain.Number(d.Port.Total, "endpoint"), how, d.Takes)
	all := d.Candidates
	if d.Frontend.Affinity > 0 {
		all = x.affinity(d.Frontend, all)
	}
	for i, c := range all {
		if i == maxEndpoints {
			x.step("Endpoint", "", "And %d more.", len(all)-i)
			break
		}
		where := map[bool]string{true: ", on this node"}[x.here(c.Backend)]
		if i := slices.IndexFunc(d.Port.Endpoints, func(e desired.EndpointView) bool { return e.Backend == c.Backend }); i >= 0 && d.Port.Endpoints[i].Warming > 0 {
			where += fmt.Sprintf(", warming: it became ready a short time ago and has %d %% of its weight", d.Port.Endpoints[i].Warming)
		}
		x.step("Endpoint", "", "%s with probability %.4g %%%s.", c.Backend, 100*c.Share, where)
	}
	x.unused()
	return all
}

// here reports whether an endpoint is known to be on this node.
func (x *explainer) here(b desired.Backend) bool {
	return slices.ContainsFunc(x.decision.Port.Endpoints, func(e desired.EndpointView) bool { return e.Backend == b && e.Here })
}

// WhyEmpty says in a sentence why a pool of a port has no endpoint, and since when.
func WhyEmpty(p *desired.PortView, why desired.Empty) string {
	since := ""
	for _, pool := range p.Pools {
		if pool.Empty == why && pool.EmptySince != nil {
			since = ", since " + pool.EmptySince.Format(time.DateTime)
		}
	}
	switch why {
	case desired.NoEndpointSlice:
		return "The Service has no EndpointSlice" + since + ". Check its selector, and that kube-controller-manager runs"
	case desired.NoSuchPort:
		return fmt.Sprintf("No endpoint in its %s has the port %s%s. Check targetPort and the names of ports", plain.Number(p.Slices, "EndpointSlice"), p.Name, since)
	case desired.EmptySlices:
		return fmt.Sprintf("There is no endpoint in its %s%s. Check the Service's selector, and that its pods run", plain.Number(p.Slices, "EndpointSlice"), since)
	case desired.NoLocalEndpoint:
		return none(p.Total) + " on this node and usable" + since
	case desired.NoReadyEndpoint:
		return none(p.Total) + " ready" + since
	}
	return ""
}

func none(endpoints int) string {
	if endpoints == 1 {
		return "Its only endpoint is not"
	}
	return fmt.Sprintf("None of its %d endpoints is", endpoints)
}

// affinity explains session affinity, and returns the endpoints that may be chosen: only the one that the
// client had before, if that is known.
func (x *explainer) affinity(f *desired.Frontend, all []desired.Candidate) []desired.Candidate {
	const title = "Affinity"
	rule := fmt.Sprintf("A client's address keeps its endpoint until %d s after its last new connection (sessionAffinity ClientIP)", f.Affinity)
	if !x.client.Addr.IsValid() || x.view.ClientsBackend == nil {
		x.step(title, "", "%s.", rule)
		return all
	}
	last, left, err := x.view.ClientsBackend(f, x.client.Addr)
	i := slices.IndexFunc(all, func(c desired.Candidate) bool { return c.Backend == last })
	switch {
	case err != nil:
		x.step(title, "", "%s. The client's endpoint could not be read: %v", rule, err)
	case last == desired.Backend{}:
		x.step(title, "", "%s. %s has none.", rule, x.client.Addr)
	case i < 0:
		x.step(title, "", "%s. %s had endpoint %s, which is not used any more, so it gets another one.", rule, x.client.Addr, last)
	default:
		x.step(title, "", "%s. %s has endpoint %s, for %s if it makes no other connection.", rule, x.client.Addr, last, left.Round(time.Second))
		all = []desired.Candidate{all[i]}
		all[0].Share = 1
	}
	return all
}

// unused lists endpoints that are not used, with the reasons.
func (x *explainer) unused() {
	n := 0
	ctx, cancel := context.WithTimeout(x.ctx, 2*time.Second) // the API server may not answer
	defer cancel()
	for _, e := range x.decision.Port.Endpoints {
		if why := e.Use[x.decision.Scope.String()]; why != "" && why != desired.Used.String() {
			if n++; n <= maxEndpoints {
				x.step("Not used", "", "%s: %s%s.", e.Address, why, x.unready(ctx, e.Backend.Addr()))
			}
		}
	}
	if n > maxEndpoints {
		x.step("Not used", "", "And %d more.", n-maxEndpoints)
	}
}

// unready names the pods of an endpoint that are not ready, and why, as the API server says now; "" if it cannot be asked.
func (x *explainer) unready(ctx context.Context, a netip.Addr) (all string) {
	if x.view.Pods == nil {
		return ""
	}
	pods, _ := x.view.Pods(ctx, x.decision.Service.Namespace, "status.podIP="+a.String())
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
				all += fmt.Sprintf(", pod %s (%s)", p.Name, plain.Line(cmp.Or(c.Message, c.Reason, "no reason is given"), 200))
			}
		}
	}
	return all
}

// masquerades say why the endpoint sees an address of this node, or the client's.
var masquerades = [...]string{
	desired.KeptUnknown:         "clusterCIDR or detectLocalMode would have to say which clients are pods, for others to be masqueraded",
	desired.KeptPod:             "a pod reaches a ClusterIP with its own address",
	desired.KeptLocal:           "externalTrafficPolicy is Local",
	desired.MasqueradedExternal: "replies of connections to an address of this kind have to return through this node",
	desired.MasqueradedAll:      "masqueradeAll is set",
	desired.MasqueradedNotPod:   "only pods, as clusterCIDR or detectLocalMode tells them, reach a ClusterIP with their own address",
	desired.MasqueradedNode:     "externalTrafficPolicy Local keeps only the addresses of other clients",
}

// masquerade says whether the endpoint sees the client's address.
func (x *explainer) masquerade(all []desired.Candidate) {
	m := x.decision.Masquerade
	masqueraded, why := m.Masqueraded(), masquerades[m]
	if x.detail.MasqueradesNode && x.client.Class == desired.FromNode && !masqueraded {
		masqueraded, why = true, "in this mode, a connection of the node can have a Service's address as its own"
	}
	if slices.ContainsFunc(all, func(c desired.Candidate) bool { return c.Addr() == x.client.Addr }) {
		why += "; but a connection that is sent back to its own pod is masqueraded"
	}
	if masqueraded && slices.ContainsFunc(all, func(c desired.Candidate) bool { return c.Here }) {
		why += "; but an endpoint with an address of this node sees the client's address"
	}
	if masqueraded {
		x.step("Masquerade", "", "The endpoint sees an address of this node in place of the client's: %s.", why)
	} else {
		x.step("Masquerade", "", "The endpoint sees the client's address: %s.", why)
	}
}

// connections shows what conntrack has of the frontend.
func (x *explainer) connections() {
	var total existing
	by := map[string]existing{}
	conn, err := flows.New(0)
	if err == nil {
		err = conn.Translated(x.ctx, func(f *flows.Flow) {
			if f.Frontend() == x.to && (!x.client.Addr.IsValid() || x.client.Addr == f.Source.Addr()) {
				total = total.with(f)
				by[f.Backend.String()] = by[f.Backend.String()].with(f)
			}
		})
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		x.step("Conntrack", "", "Connections could not be read: %v", err)
		return
	}
	fast := "There is no fast path"
	if x.view.FastPath != nil {
		fast = fmt.Sprintf("%d of them are on the fast path", total.offloaded)
	}
	if x.decision.Frontend.SlowPath {
		fast = "The Service is kept off the fast path by its annotation"
	}
	x.step("Conntrack", "", "%s to %s now. %s.", plain.Number(int(total.connections), "connection"), x.to, fast)
	for _, backend := range slices.Sorted(maps.Keys(by)) {
		c := by[backend]
		if c.unanswered > 0 && x.to.Protocol == desired.TCP {
			x.stop(NoAnswer, true, "Conntrack", "", "%d of %s to endpoint %s without a reply.", c.unanswered, plain.Number(int(c.connections), "connection"), backend)
		}
	}
}
